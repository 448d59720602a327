"""The kind of record every table of an experiment is, and the kinds of numbers in it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
# Each client costs memory before anything is checked further: a slip of the key must not take all of it.
ClientCount = Annotated[int, Field(ge=1, le=1_000_000)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class TomlTable(BaseModel):
    """A TOML table: immutable, strictly typed, without unknown keys."""

    # An infinite parameter of a policy stays one where the table is written down.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")
