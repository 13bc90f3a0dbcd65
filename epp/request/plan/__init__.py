"""From EndpointPickerConfig to what runs: names resolved, rules checked, defaults filled in."""
