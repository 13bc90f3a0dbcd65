"""The configuration that stands where nobody gave one, in the words that users write.

Endpoints are rated by the seconds that a request costs there, its own and those of others
(`epp.framework.cost`): a cached prefix is worth what computing it would take, so that a long one is
worth a longer queue than a short one, and one overloaded endpoint changes nothing among the others
(fault B12). Of 40 equal requests at once on 4 equal endpoints none gets more than 14, however long
their prompt is and whoever holds it. On endpoints that are idle, a LoRA adapter that runs somewhere
is worth a quarter of a second more than free room for it, and room four seconds more than none;
requests for a base model do not feel it (fault B22).
"""

_CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: decode-filter
  - type: prefill-filter
  - type: cost-scorer
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
      - {pluginRef: cost-scorer, weight: 1}
      - {pluginRef: lora-affinity-scorer, weight: 1}
      - pluginRef: max-score-picker
  - name: prefill
    plugins:
      - pluginRef: prefill-filter
      - {pluginRef: cost-scorer, weight: 1}
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
    "cost": """\
  - type: cost-pd-decider
  - type: disagg-profile-handler
    parameters: {deciders: {prefill: cost-pd-decider}}""",
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
    """The text, with `--split` (`prefix`, `cost`, `always`, `never`) and its threshold in it, and
    how many endpoints are named at most, to answer and to prefill."""
    text = _CONFIG.replace("@SPLIT@", _SPLIT[split])
    for word, number in (
        ("@TOKENS@", threshold_tokens),
        ("@ENDPOINTS@", endpoints),
        ("@PREFILLERS@", prefillers),
    ):
        text = text.replace(word, str(number))
    return text.encode()
