"""All carriers by name, and their configuration section, collected from the folders beside this file."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import Field, SerializerFunctionWrapHandler, create_model, model_serializer

import gateway.carriers
from gateway.carriers.carrier import Carrier, ConfiguredCarrier
from gateway.config import Section


def _declared() -> dict[str, Carrier[Any]]:
    folders = [entry.name for entry in pkgutil.iter_modules(gateway.carriers.__path__) if entry.ispkg]
    carriers = {folder: import_module(f"gateway.carriers.{folder}").CARRIER for folder in sorted(folders)}
    for folder, carrier in carriers.items():
        assert carrier.key == folder, f"gateway/carriers/{folder} declares {carrier.name!r}"
    return {carrier.name: carrier for carrier in carriers.values()}


CARRIERS: Mapping[str, Carrier[Any]] = _declared()
"""The carriers by dialect name."""


class CarrierSections(Section):
    """Secrets and options per dialect. A carrier without a section here is not served (404); `{}` is a section."""

    def configured(self) -> dict[str, ConfiguredCarrier]:
        """Return the carriers with a section in the file (even an empty one), by dialect name."""
        return {
            name: ConfiguredCarrier(carrier, getattr(self, carrier.key))
            for name, carrier in CARRIERS.items()
            if carrier.key in self.model_fields_set
        }

    @model_serializer(mode="wrap")
    def _only_sections_of_the_file(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: section for name, section in serialize(self).items() if name in self.model_fields_set}


if TYPE_CHECKING:
    CarriersConfig = CarrierSections
else:
    CarriersConfig = create_model(
        "CarriersConfig",
        __base__=CarrierSections,
        __doc__=CarrierSections.__doc__,
        **{
            carrier.key: (carrier.settings, Field(carrier.settings(), description=carrier.about))
            for carrier in CARRIERS.values()
        },
    )
