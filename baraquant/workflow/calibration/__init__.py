# SPDX-License-Identifier: BSD-3-Clause
"""Calibration: observers, and running a model over data; public as :mod:`baraquant.calibration`."""
