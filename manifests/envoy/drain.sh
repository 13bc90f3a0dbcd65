#!/bin/bash
# Let an Envoy finish what it has begun: bash drain.sh <its admin port> <seconds at most> [<at least>]
#
# New connections go elsewhere as soon as the pod terminates; idle ones are told to close. Ends when
# no request is active, after 5 s at the earliest; Envoy ends after it. Needs nothing that Envoy's image lacks.
set -u
port=$1 limit=$2 least=${3:-5}

ask() { # ask <method> <path>
    exec 3<>"/dev/tcp/127.0.0.1/$port" || return 1
    printf '%s %s HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n' "$1" "$2" >&3
    cat <&3
    exec 3>&-
}

ask POST '/drain_listeners?graceful&skip_exit' >/dev/null
while [ "$SECONDS" -lt "$limit" ]; do
    sleep 1
    active=$(ask GET '/stats?filter=^http\.gateway\.downstream_rq_active$') || exit 0
    if [ "$SECONDS" -ge "$least" ] && [[ $active == *'downstream_rq_active: 0'* ]]; then exit 0; fi
done
