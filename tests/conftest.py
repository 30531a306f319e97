"""
What all tests share.

Hypothesis runs the same examples every time on CI (its own profile, chosen by the variable CI) and looks for new ones
on a developer's machine. Neither fails for slowness: machines are shared, and speed is the benchmarks' business.
"""

from hypothesis import HealthCheck, settings

# --doctest-modules would import these: a file that only type checkers read, and a script.
collect_ignore = ["typing", "packaging/check_wheel.py"]

settings.register_profile(
    "here", settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("on-ci", settings.get_profile("ci"), deadline=None)
settings.load_profile("on-ci" if settings.get_current_profile_name() == "ci" else "here")
