"""The configuration that stands where nobody gave one, in the words that users write.

The decode profile weighs everything on one scale. A queue of 8 requests more than the emptiest
candidate's costs 3, which nothing else can outweigh alone: a short cached prefix (worth 1) is left
for an idle endpoint at 3 requests more, a long one (worth 2) at 6. Running requests count in part:
without them a warm endpoint that answers quickly would take a whole burst of equal requests, since
none of them ever waits there. Of 40 at once on 4 equal endpoints none gets more than 14. Ranges
are absolute, so that one overloaded endpoint changes nothing among the others (fault B12). A LoRA
adapter that runs somewhere is worth one request more than free room for it, and room 4 more than
none; requests for a base model do not feel it (fault B22).

Of the prefill profile tokens weigh as much as the queue: a prefill pod works them off one prompt
after the other, so that two long prompts ahead are worse than five short ones. A prefill ends
before its answer takes room.
"""

_CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: decode-filter
  - type: prefill-filter
  - type: prefix-cache-scorer
    parameters: {matchLengthWeight: 0.5, matchLengthScaleTokens: 4096}
  - type: queue-scorer
    parameters: {minRange: 8, maxRange: 8, runningWeight: 0.6}
  - type: queue-scorer
    name: prefill-queue-scorer
    parameters: {minRange: 8, maxRange: 8}
  - type: token-load-scorer
    parameters: {queueThresholdTokens: 65536}
  - type: decode-load-scorer
  - type: kv-cache-utilization-scorer
  - type: lora-affinity-scorer
  - type: max-score-picker
    parameters: {maxNumOfEndpoints: @ENDPOINTS@}
  - type: max-score-picker
    name: prefill-picker
    parameters: {maxNumOfEndpoints: @PREFILLERS@}
@SPLIT@
schedulingProfiles:
  - name: decode
    plugins:
      - pluginRef: decode-filter
      - {pluginRef: prefix-cache-scorer, weight: 2}
      - {pluginRef: queue-scorer, weight: 3}
      - {pluginRef: token-load-scorer, weight: 1}
      - {pluginRef: decode-load-scorer, weight: 1}
      - {pluginRef: kv-cache-utilization-scorer, weight: 1}
      - {pluginRef: lora-affinity-scorer, weight: 2}
      - pluginRef: max-score-picker
  - name: prefill
    plugins:
      - pluginRef: prefill-filter
      - {pluginRef: prefix-cache-scorer, weight: 2}
      - {pluginRef: prefill-queue-scorer, weight: 3}
      - {pluginRef: token-load-scorer, weight: 3}
      - pluginRef: prefill-picker
"""

_SPLIT = {
    "prefix": """\
  - type: prefix-based-pd-decider
    parameters: {nonCachedTokens: @TOKENS@}
  - type: disagg-profile-handler
    parameters: {deciders: {prefill: prefix-based-pd-decider}}""",
    "always": """\
  - type: always-disagg-pd-decider
  - type: disagg-profile-handler
    parameters: {deciders: {prefill: always-disagg-pd-decider}}""",
    "never": """\
  - type: disagg-profile-handler""",
}


def default_config(
    split: str = "prefix",
    threshold_tokens: int = 512,
    *,
    endpoints: int = 1,
    prefillers: int = 2,
) -> bytes:
    """The text, with `--split` (`prefix`, `always`, `never`) and its threshold in it, and how many
    endpoints are named at most, to answer and to prefill."""
    text = _CONFIG.replace("@SPLIT@", _SPLIT[split])
    for word, number in (
        ("@TOKENS@", threshold_tokens),
        ("@ENDPOINTS@", endpoints),
        ("@PREFILLERS@", prefillers),
    ):
        text = text.replace(word, str(number))
    return text.encode()
