"""The fields of a Pod that placement needs, as the API server writes them."""

from __future__ import annotations

import msgspec
import pytest

from scheduler_core.pods import PodSpec, waits_for_volumes


@pytest.mark.parametrize(
    ("volumes", "waits"),
    [
        pytest.param('[{"name":"data","persistentVolumeClaim":{"claimName":"data"}}]', True, id="claim"),
        pytest.param('[{"emptyDir":{}},{"ephemeral":{"volumeClaimTemplate":{}}}]', True, id="ephemeral"),
        pytest.param('[{"projected":{"sources":[]}},{"emptyDir":{}}]', False, id="neither"),
        pytest.param("null", False, id="none"),
    ],
)
def test_pod_with_a_claim_may_wait_for_its_volume_before_it_is_bound(volumes: str, waits: bool) -> None:
    assert waits_for_volumes(msgspec.json.decode(f'{{"volumes":{volumes}}}', type=PodSpec)) is waits
