"""The configuration that stands where nobody gave one, in the words that users write."""

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
  - name: prefill
    plugins:
      - pluginRef: prefill-filter
      - {pluginRef: prefix-cache-scorer, weight: 2}
      - {pluginRef: prefill-queue-scorer, weight: 3}
      - {pluginRef: token-load-scorer, weight: 3}
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


def default_config(split: str = "prefix", threshold_tokens: int = 512) -> bytes:
    """The text, with `--split` (`prefix`, `always`, `never`) and its threshold in it."""
    part = _SPLIT[split].replace("@TOKENS@", str(threshold_tokens))
    return _CONFIG.replace("@SPLIT@", part).encode()
