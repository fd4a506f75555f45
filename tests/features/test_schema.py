"""A schema's digest: equal for equal feature matrices, and for nothing else."""

from __future__ import annotations

import pytest
from tests.support import python

from tileguard.features.access import ACCESS_FEATURES, CODE_FEATURES
from tileguard.features.errors import InvalidInput
from tileguard.features.placement import PLACEMENT_FEATURES
from tileguard.features.reduction import KERNEL_FEATURES, REDUCTION_SCHEMA, TILE_FEATURES
from tileguard.features.schema import FeatureSchema

BASE = FeatureSchema("reduction", 1, ("a", "b", "c"))


@pytest.mark.parametrize(
    "other",
    [
        FeatureSchema("matmul", 1, ("a", "b", "c")),
        FeatureSchema("reduction", 2, ("a", "b", "c")),
        FeatureSchema("reduction", 1, ("a", "c", "b")),
        FeatureSchema("reduction", 1, ("a", "b", "d")),
        FeatureSchema("reduction", 1, ("a", "b")),
        FeatureSchema("reduction", 1, ("a", "bc")),
        FeatureSchema("reduction", 1, ("a,b", "c")),
    ],
    ids=lambda schema: f"{schema.family}{schema.version}{schema.names}",
)
def test_family_version_order_and_names_change_the_digest(other: FeatureSchema) -> None:
    assert other.digest != BASE.digest


def test_equal_schemas_have_equal_digests_in_every_process() -> None:
    assert FeatureSchema("reduction", 1, ("a", "b", "c")).digest == BASE.digest
    code = "from tileguard.features import REDUCTION_SCHEMA; print(REDUCTION_SCHEMA.digest)"
    assert python(code, PYTHONHASHSEED="1").strip() == REDUCTION_SCHEMA.digest


@pytest.mark.parametrize("names", [(), ("a", "a")])
def test_no_names_or_a_name_twice_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        FeatureSchema("reduction", 1, names)
    assert caught.value.field == "names"


def test_the_reduction_schema_is_what_depends_on_the_kernel_then_what_depends_on_the_tile_too() -> None:
    assert (
        REDUCTION_SCHEMA.names == KERNEL_FEATURES + CODE_FEATURES + TILE_FEATURES + ACCESS_FEATURES + PLACEMENT_FEATURES
    )
    assert REDUCTION_SCHEMA.family == "reduction"
