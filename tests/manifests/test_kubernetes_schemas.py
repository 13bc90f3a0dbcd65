"""What is rendered keeps Kubernetes' own schemas, strictly: no field that a server would drop."""

import pytest

from epp.manifests.overlay import GATEWAYS, Gateway
from tests.manifests.rendered import rendered

pytestmark = pytest.mark.long

OLDEST_AND_NEWEST = ("1.33", "1.37")
"""Native sidecars are stable since the first."""
OURS = {"v1", "apps/v1", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1"}


@pytest.mark.parametrize("gateway", GATEWAYS)
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
def test_built_in_kinds_keep_their_schemas(gateway: Gateway, apart: bool, version: str) -> None:
    import kubernetes_validate

    checked = [one for one in rendered(gateway, apart=apart) if one["apiVersion"] in OURS]
    assert len(checked) > 15
    for one in checked:
        assert kubernetes_validate.validate(one, version, strict=True) == version
