"""The model that all sections of settings share."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Values are frozen and unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
