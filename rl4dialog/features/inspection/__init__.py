"""What looks into a run: the doctor before it, warnings during it, measures of critic, reward and simulated users."""

from rl4dialog.core.features import Feature

_DOCTOR = ("data_checks", "examination", "model_checks", "subject")
FEATURE = Feature(
    "what looks into a run: the doctor before it, warnings during it, measures of critic, reward and simulated users",
    commands=f"{__name__}.commands",
    callbacks=[f"{__name__}.watch:watch"],
    moved={
        "rl4dialog.inference.reward_validation": f"{__name__}.reward_validation",
        "rl4dialog.training.watch": f"{__name__}.watch",
        **{f"rl4dialog.training.doctor.{name}": f"{__name__}.{name}" for name in _DOCTOR},
    },
    page=["watching.md", "partner_check.md"],
)
