"""Write reference.npz: 50 training steps by each optimizer, and the rates of each schedule.

    python tests/data/optimizers/make_reference_values.py      # in an environment with torch

The problem is linear: y = x W + b with W [4, 3] and b [3], mean squared error, a new batch of 8
rows in each step. Everything is float64. torch.optim and torch.optim.lr_scheduler give the numbers;
make_optax_values.py beside this file adds those of Lion and LAMB, which torch does not have.
tests/python/test_optimizers.py and tests/python/test_schedules.py read the file.

Written with torch 2.15.0 and numpy 2.4.6.
"""

from pathlib import Path

import numpy as np
import torch
from torch.optim import lr_scheduler

FOLDER = Path(__file__).resolve().parent
STEPS = 50
ROWS = 8
KEPT = (1, 2, 10, 50)  # after these steps the weights are kept


def make_problem():
    """Return batches x [50, 8, 4], y [50, 8, 3] and first weights."""
    rng = np.random.default_rng(7)
    x = rng.normal(0, 1, (STEPS, ROWS, 4)) * np.array([1, 0.3, 2, 1])
    true = rng.normal(0, 1, (4, 3))
    y = x @ true + rng.normal(0, 0.3, (STEPS, ROWS, 3)) + 0.5
    return x, y, rng.normal(0, 0.5, (4, 3)), rng.normal(0, 0.5, 3)


def run_torch(make, clip_value=None, clip_norm=None, schedule=None, closure_steps=None):
    """Steps of a torch optimizer; `make` gets (W, b)."""
    x, y, weights, bias = make_problem()
    w = torch.tensor(weights, requires_grad=True)
    b = torch.tensor(bias, requires_grad=True)
    x, y = torch.tensor(x), torch.tensor(y)
    optimizer = make(w, b)
    scheduler = schedule(optimizer) if schedule else None
    kept = []

    def loss_of(inputs, targets):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(inputs @ w + b, targets)
        loss.backward()
        return loss

    for step in range(closure_steps or STEPS):
        if closure_steps:
            optimizer.step(lambda: loss_of(x.reshape(-1, 4), y.reshape(-1, 3)))
        else:
            loss_of(x[step], y[step])
            if clip_value:
                torch.nn.utils.clip_grad_value_([w, b], clip_value)
            if clip_norm:
                torch.nn.utils.clip_grad_norm_([w, b], clip_norm)
            optimizer.step()
        if scheduler:
            scheduler.step()
        if closure_steps or step + 1 in KEPT:
            kept.append(np.concatenate([w.detach().numpy().ravel(), b.detach().numpy()]))
    return np.array(kept)


def optimizer_cases():
    """Return name -> weights after the steps of KEPT (L-BFGS: after each step)."""
    both = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "momentum_dampening": lambda p: torch.optim.SGD(
            p, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.01
        ),
        "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        "adam": lambda p: torch.optim.Adam(p, lr=0.05),
        "adam_options": lambda p: torch.optim.Adam(
            p, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.02
        ),
        "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.9), amsgrad=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.05),
        "adamw_options": lambda p: torch.optim.AdamW(
            p, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3, amsgrad=True
        ),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.3),
        "adagrad_options": lambda p: torch.optim.Adagrad(
            p, lr=0.3, lr_decay=0.1, weight_decay=0.02, initial_accumulator_value=0.5, eps=1e-3
        ),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02),
        "rmsprop_momentum": lambda p: torch.optim.RMSprop(
            p, lr=0.01, alpha=0.9, momentum=0.8, eps=1e-4, weight_decay=0.02
        ),
        "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.95, centered=True),
        "rmsprop_all": lambda p: torch.optim.RMSprop(
            p, lr=0.01, alpha=0.95, centered=True, momentum=0.5
        ),
    }
    values = {name: run_torch(lambda w, b, m=make: m([w, b])) for name, make in both.items()}
    groups = {
        "groups_adamw": lambda w, b: torch.optim.AdamW(
            [{"params": [w]}, {"params": [b], "lr": 0.005, "weight_decay": 0.0}],
            lr=0.05,
            weight_decay=0.3,
        ),
        "groups_sgd": lambda w, b: torch.optim.SGD(
            [{"params": [w], "lr": 0.01, "weight_decay": 0.1}, {"params": [b]}],
            lr=0.1,
            momentum=0.5,
        ),
    }
    values |= {name: run_torch(make) for name, make in groups.items()}
    sgd = lambda w, b: torch.optim.SGD([w, b], lr=0.3, momentum=0.5)  # noqa: E731
    values["clip_value"] = run_torch(sgd, clip_value=0.05)
    values["clip_norm"] = run_torch(sgd, clip_norm=0.1)
    values["clip_both"] = run_torch(sgd, clip_value=0.2, clip_norm=0.25)
    values["adam_step_schedule"] = run_torch(
        lambda w, b: torch.optim.Adam([w, b], lr=0.1),
        schedule=lambda o: lr_scheduler.StepLR(o, 7, 0.7),
    )
    lbfgs = {
        "lbfgs": {"line_search_fn": "strong_wolfe", "history_size": 10},
        "lbfgs_short": {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 2},
        "lbfgs_fixed": {"lr": 0.5, "history_size": 5, "max_iter": 5},
    }
    for name, options in lbfgs.items():
        values[name] = run_torch(
            lambda w, b, o=options: torch.optim.LBFGS([w, b], **o), closure_steps=6
        )
    return values


def rates_of(schedule, steps=60, lr=0.5, losses=None):
    """Return the rates that a torch scheduler gives, one per step."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    scheduler = schedule(optimizer)
    rates = []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if losses is None:
            scheduler.step()
        else:
            scheduler.step(losses[step])
    return np.array(rates)


def schedule_cases():
    """Return name -> 60 rates, and the losses that plateaus see."""
    rng = np.random.default_rng(3)
    losses = np.abs(np.exp(-np.arange(60) / 12) + rng.normal(0, 0.05, 60)) + 0.1
    s = lr_scheduler
    values = {
        "constant": rates_of(lambda o: s.ConstantLR(o, 1.0)),
        "step": rates_of(lambda o: s.StepLR(o, 7, 0.6)),
        "multi_step": rates_of(lambda o: s.MultiStepLR(o, [5, 20, 21, 50], 0.3)),
        "exponential": rates_of(lambda o: s.ExponentialLR(o, 0.93)),
        "cosine": rates_of(lambda o: s.CosineAnnealingLR(o, 60, 0.05)),
        "cosine_restarts": rates_of(lambda o: s.CosineAnnealingWarmRestarts(o, 10, 1)),
        "cosine_restarts_longer": rates_of(
            lambda o: s.CosineAnnealingWarmRestarts(o, 7, 2, eta_min=0.1)
        ),
        "one_cycle": rates_of(lambda o: s.OneCycleLR(o, 0.5, total_steps=61)),
        "one_cycle_linear": rates_of(
            lambda o: s.OneCycleLR(
                o,
                0.5,
                total_steps=61,
                pct_start=0.5,
                div_factor=10,
                final_div_factor=100,
                anneal_strategy="linear",
            )
        ),
        "linear": rates_of(lambda o: s.LinearLR(o, 1.0, 0.1, 40)),
        "polynomial": rates_of(lambda o: s.PolynomialLR(o, 45, 2.0)),
        "warmup_cosine": rates_of(
            lambda o: s.SequentialLR(
                o, [s.LinearLR(o, 0.1, 1.0, 10), s.CosineAnnealingLR(o, 50)], [10]
            )
        ),
        "product": rates_of(
            lambda o: s.ChainedScheduler([s.ExponentialLR(o, 0.98), s.StepLR(o, 20, 0.5)])
        ),
        "plateau": rates_of(lambda o: s.ReduceLROnPlateau(o, patience=3), losses=losses),
        "plateau_options": rates_of(
            lambda o: s.ReduceLROnPlateau(
                o, factor=0.5, patience=1, threshold=0.05, cooldown=2, min_lr=0.05
            ),
            losses=losses,
        ),
    }
    return values, losses


def main():
    """Write the file."""
    x, y, weights, bias = make_problem()
    arrays = {"x": x, "y": y, "weights": weights, "bias": bias}
    arrays |= {f"optimizer/{name}": value for name, value in optimizer_cases().items()}
    schedules, losses = schedule_cases()
    arrays |= {f"schedule/{name}": value for name, value in schedules.items()}
    arrays["losses"] = losses
    path = FOLDER / "reference.npz"
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
