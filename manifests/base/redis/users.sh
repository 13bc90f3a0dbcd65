#!/bin/sh
# Write the users of the pool's Redis: sh users.sh <rights> <passwords> <where to>
#
# A user for each Deployment, so that each password can be changed alone, with the rights of its
# kind on the keys of this pool, which POOL_NAME names. The file holds hashes, no passwords.
set -eu
rights=$1 passwords=$2 users=$3/users.acl

user() { # user <name> <kind>
    hash=$(tr -d '\r\n' <"$passwords/$1" | sha256sum | cut -d ' ' -f 1)
    echo "user $1 on #$hash resetchannels $(sed "s/<pool>/$POOL_NAME/g" "$rights/rights-of-$2")"
}

umask 077
{
    echo 'user default off'
    user picker pickers
    for engines in vllm prefill decode; do user "$engines" engines; done
} >"$users"
