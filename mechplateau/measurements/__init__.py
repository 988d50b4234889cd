"""What an evaluation records: measurements with documented columns, one registry for all of them."""

from mechplateau.measurements import cells as cells  # registers its measurements
from mechplateau.measurements import inside as inside  # registers its measurements
from mechplateau.measurements import language as language  # registers its measurements
from mechplateau.measurements import outputs as outputs  # registers its measurements
from mechplateau.measurements import regression as regression  # registers its measurements
from mechplateau.measurements.base import (
    Measurement,
    Seen,
    Setting,
    chosen_measurements,
    joined_columns,
    measurement_class,
    measurement_names,
    register_measurement,
)
from mechplateau.measurements.columns import STEP, Column, markdown
from mechplateau.measurements.inside import keeps_pictures

__all__ = [
    "STEP",
    "Column",
    "Measurement",
    "Seen",
    "Setting",
    "chosen_measurements",
    "columns_of",
    "keeps_pictures",
    "markdown",
    "measurement_class",
    "measurement_names",
    "register_measurement",
]


def columns_of(setting: Setting, asked: tuple[str, ...] | None = None) -> tuple[Column, ...]:
    """The columns of the table of a run with this setting, in order.

    Args:
        setting: task, model, places.
        asked: `evaluation.measurements`.

    Raises:
        ConfigError: a measurement is not known or does not fit, or two have a column of one name.
    """
    chosen = chosen_measurements(setting.task, setting.model, asked)
    return joined_columns([cls(setting) for cls in chosen])
