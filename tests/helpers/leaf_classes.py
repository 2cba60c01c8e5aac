"""The class of every leaf of the files in a run's folder, by its names; places in lists are left out.

| class | what it is |
|-------|------------|
| option | what was asked for, as it was given |
| declaration | a public fact that was declared |
| outcome | a noisy outcome of the priced event |
| made up | what was seen on made-up tables, in which no record enters |
| bookkeeping | ids, versions, seeds and times, in which no record enters |
| function | what follows from the others: `confide verify` refuses another value |
"""

_PLAN = {
    "option": """
        request.account request.account.histogram request.account.stretch request.baseline request.canaries
        request.draws request.method request.noise request.outcome_bound request.residual request.secure request.steps
        request.sampler.average request.sampler.bound request.sampler.categories request.sampler.constant
        request.sampler.corrected request.sampler.draws request.sampler.family request.sampler.features.group
        request.sampler.features.high request.sampler.features.kind request.sampler.features.low
        request.sampler.features.prior request.sampler.features.typical request.sampler.first.draws
        request.sampler.first.name
        request.sampler.first.schedule request.sampler.hidden_chains request.sampler.mean_decay request.sampler.name
        request.sampler.outcome
        request.sampler.prior request.sampler.prior_scale request.sampler.rehearsals request.sampler.schedule
        request.sampler.share request.sampler.square_decay request.sampler.temperature request.sampler.then.friction
        request.sampler.then.name request.sampler.then.schedule request.sampler.then.temperature
        request.sampler.total_variation budget.epsilon
    """,
    "declaration": "arrays records",
    "outcome": """
        scale.answers.finer scale.answers.norms scale.answers.outcomes lag_one drift individual.counts labelled.labels
        labelled.rows figure.log_moment
    """,
    "bookkeeping": "run calibration.seconds",
    "function": """
        algorithm answer_noise answers average batch_size bound budget.delta budget.neighbours burn_in
        calibration.coverage calibration.coverage_error calibration.datasets calibration.errors calibration.inflation
        calibration.key calibration.log_loss calibration.log_loss_of_the_truth calibration.probability
        calibration.widths canaries categories chains check_noise clip clipping constant corrected counted.error
        counted.number cuts diffusion_time draws epsilon estimate family features features.group features.high
        features.kind features.low features.prior features.typical figure.delta figure.epsilon figure.order
        figure.sentence figure_noise first.batch_size
        first.burn_in first.chains first.clip first.clipping first.diffusion_time first.draws first.last_step_size
        first.likelihood_power first.model first.norm_bound first.parameters first.records first.sampler first.schedule
        first.settled first.step_size first.steps first.temperature first.thin friction gradient_bound hidden_chains
        individual.edges individual.histogram individual.noise individual.stretch information information_multipliers
        labels last_step_size learning_rate learnt likelihood_power log_likelihood_bound mean_decay mechanism method
        model model_reason noise noise_multiplier noise_multipliers noise_scale norm_bound outcome_bound
        output_noise_scale parameters prior.columns prior.intercept prior.kind prior.slope prior_regularisation
        prior_scale queries
        radius regularisation rehearsals residual row_bound sampler samples scale.declared scale.noise scale.norm
        scale.seen schedule settled shape share smoothness square_decay step_size steps target temperature then thin
        tolerance total_variation warmup
    """,
}
_FILES = {
    "guarantee.json": {
        "option": "accountant assumptions",  # sentences; the price demands those of the event
        "function": """
            epsilon delta neighbours released sentences mechanism event.answer_noise event.answers event.check_noise
            event.delta event.draws event.epsilon event.event event.events.delta event.events.epsilon
            event.events.event event.events.gradient_bound event.events.histograms event.events.mu
            event.events.neighbours event.events.noise event.events.noise_multiplier event.events.noise_multipliers
            event.events.releases event.events.sampling_probabilities event.events.sampling_probability
            event.events.smoothness event.events.step_sizes event.events.steps event.events.strong_convexity
            event.events.temperature event.figure_noise event.gradient_bound event.log_likelihood_bound event.mu
            event.neighbours event.noise_multiplier event.noise_multipliers event.power event.queries event.releases
            event.repeats event.sampling_probability event.smoothness event.step_sizes event.steps
            event.strong_convexity event.temperature event.total_variation
        """,
    },
    "plan.json": {
        "bookkeeping": "format",
        "declaration": """
            model.name model.settings model.settings.dimension model.settings.intercept model.settings.noise_scale
            model.settings.norm_bound model.settings.prior model.settings.prior_scale
        """,
        "function": "variables",
    },
    "release.json": {
        "bookkeeping": "format kind",
        "outcome": """
            answers.count answers.columns answers.tails answers.middle answers.norm answers.moments answers.scores
            answers.slope answers.variance answers.finer answers.norms answers.outcomes first_information
            last_information sums moments
        """,
        "function": """
            categories constant cuts family family.word features features.group features.high features.kind
            features.low features.prior features.typical inflation information_multipliers last_position multiplier
            noise prior.columns
            noise_multipliers noise_scale norm_bound outcome places positions prior prior.intercept prior.kind
            prior.slope prior_scale records root scale.counts scale.finer scale.intercept scale.noise scale.norm_bound
            width
        """,
    },
    "canaries.json": {
        "bookkeeping": "inside",  # coins
        "outcome": "scores sums squares pulls",
        "function": "replaced sampling_probability spread steps",
    },
    "trace.json": {
        "bookkeeping": "format",
        "outcome": "moments",
        "function": "example gradient_bound lengths records sampling_probability",
    },
    "images.json": {"function": "shape classes flattened"},
    "rehearsal.json": {
        "made up": """
            coverage coverage_error inflation widths errors log_loss log_loss_of_the_truth datasets probability
        """,
        "bookkeeping": "seconds",
        "function": "format run",
    },
    "made-up-1.json": {
        "option": "confidence",
        "made up": """
            smallest seen tests counts batches scores.name scores.auc scores.advantage scores.tpr_at_fpr scores.roc
            scores.histogram
        """,
        "bookkeeping": "seed",
        "function": """
            claimed delta tested bound general_bound p_value claim_p_value reach verdict canaries part sentences
            sentence assumption power why format kind run number repetitions steps whole tests.apart tests.pairs
            scores.members scores.nonmembers
        """,
    },
    "schema.toml": {
        "declaration": """
            columns.kind columns.low columns.high columns.unit columns.missing columns.categories columns.other
            columns.true columns.false
        """,
        "function": "target missing_values",
    },
}
CLASSES = {
    f"{file}:{name}": kind for file, kinds in _FILES.items() for kind, names in kinds.items() for name in names.split()
}
CLASSES |= {f"plan.json:plan.{name}": kind for kind, names in _PLAN.items() for name in names.split()}
OPEN = {  # entries whose names are words of the data, of tests or of queries: what is below them has their class
    "made-up-1.json": ("smallest", "tests", "counts", "scores.tpr_at_fpr", "scores.roc", "scores.histogram"),
}
KNOWN = {  # of runs whose plan cannot be made again: functions that are checked without it
    "pate": """
        guarantee.json plan.answers plan.answer_noise plan.queries plan.check_noise plan.figure_noise plan.figure
        plan.budget plan.epsilon plan.mechanism plan.sampler plan.chains plan.draws plan.model variables
    """,
    "own functions": """
        guarantee.json plan.budget plan.epsilon plan.mechanism plan.sampler plan.chains plan.draws plan.steps
        plan.model variables trace.json
    """,
}
OPTIONS_OF_PATE = ("account", "public_rows", "student", "student.dimension", "student.intercept", "student.prior")
OPTIONS_OF_PATE += ("student.prior_scale", "teachers", "threshold")
CLASSES |= {f"plan.json:plan.{name}": "option" for name in OPTIONS_OF_PATE}


def class_of(file, route):
    """The class of a leaf; None where it has none. The number of a query is no part of its name."""
    names = [str(part).split(" ")[0] for part in route if not isinstance(part, int)]
    if file == "schema.toml" and names[0] == "columns":
        names = ["columns", *names[2:]]
    path = ".".join(names)
    if found := CLASSES.get(f"{file}:{path}"):
        return found
    return next((CLASSES[f"{file}:{name}"] for name in OPEN.get(file, ()) if path.startswith(f"{name}.")), None)


def is_known(run, file, route):
    """Whether a function is checked in a run of this name."""
    if run not in KNOWN:
        return True
    path = ".".join(str(part) for part in route if not isinstance(part, int))
    return any(f"{file}:{path}".startswith((f"{name}:", f"{file}:{name}")) for name in KNOWN[run].split())
