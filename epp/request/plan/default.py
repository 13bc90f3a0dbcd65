"""The configuration that stands where nobody gave one, in the words that users write."""

DEFAULT_CONFIG = b"""\
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
  - type: prefix-based-pd-decider
    parameters: {nonCachedTokens: 512}
  - type: disagg-profile-handler
    parameters: {deciders: {prefill: prefix-based-pd-decider}}
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
