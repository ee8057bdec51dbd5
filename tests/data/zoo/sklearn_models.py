"""Estimators and pipelines of scikit-learn, LightGBM and XGBoost, converted by skl2onnx and onnxmltools."""
import numpy as np
import onnx

from reference import SPECS, row, run_stock, save, strip

MADE_BY = "skl2onnx.to_onnx"
LEAVES = ["*_weights"]   # pattern of the leaves of tree ensembles


def table(seed, rows=120, columns=5):
    g = np.random.default_rng(seed)
    return g, (g.standard_normal((rows, columns)) * g.uniform(0.5, 2, columns) + g.uniform(-1, 1, columns)).astype(np.float32)


def classes(g, x, names=(0, 1, 2)):
    score = x[:, 0] - x[:, 1] + 0.3 * g.standard_normal(len(x))
    return np.array(names)[np.digitize(score, np.quantile(score, [0.33, 0.66]))[: len(x)]] if len(names) == 3 else np.array(names)[(score > 0).astype(int)]


def numbers(g, x):
    return np.sin(x[:, 0]) + 0.5 * x[:, 1] - 0.2 * x[:, 2] * x[:, 0] + 0.1 * g.standard_normal(len(x))


def make(spec):
    """Fits, converts, compares with the estimator's own predictions and stores the inputs and outputs of ten rows."""
    estimator, rows, convert = spec["make"]()
    proto = convert()
    strip(proto)
    onnx.checker.check_model(proto)
    ten = {n: v[:10] for n, v in rows.items()}
    spec["made_by"] = spec.get("made_by", MADE_BY)
    names = [o.name for o in proto.graph.output]
    outputs = dict(zip(names, run_stock(proto, ten)))
    data = {"in/" + n: v for n, v in ten.items()}
    tabular = {}
    for name, value in outputs.items():
        if isinstance(value, list) and isinstance(value[0], dict):   # output of ZipMap
            tabular[name] = [str(k) if isinstance(k, str) else int(k) for k in value[0]]
            value = np.array([list(r.values()) for r in value], np.float32)
        data["out/" + name] = np.array(value)
    wanted = spec["predict"](estimator)
    for name, want in zip(names, wanted):
        got, want = data["out/" + name], np.asarray(want)[:10]
        if got.dtype.kind in "OU" or want.dtype.kind in "OU":
            assert [str(v) for v in got.reshape(-1)] == [str(v) for v in want.reshape(-1)], name
            continue
        close = np.abs(got.reshape(want.shape) - want) <= spec.get("forward_tolerance", 1e-4) * (1 + np.abs(want))
        assert close.all(), (name, np.abs(got.reshape(want.shape) - want).max())
    for key, value in data.items():
        if value.dtype == object:
            data[key] = value.astype(str)
    save(spec, proto, data)
    more = dict(zipmap=tabular) if tabular else {}
    if spec["trains"]:
        more.update(trains=True, loss=spec.get("loss"), loss_output=names[-1], trainable=spec.get("trainable", []))
        data["in/label"] = spec["label"](estimator)[:60]
        data.update({"in/" + n: v[:60].astype(str) if v.dtype == object else v[:60] for n, v in rows.items()})
        data["rows"] = np.int64(10)
        save(spec, proto, data)
    else:
        more.update(trains=False, reason=spec["reason"])
    return row(spec, proto, tolerance=spec.get("tolerance", 2e-4), **more)


def sk(kind, trains=True, reason=None, **spec):
    def register(build):
        SPECS[build.__name__] = dict(name=build.__name__, make=build, run=make, what=" ".join(build.__doc__.split()), kind=kind,
                                     module="sklearn", trains=trains, reason=reason, **spec)
        return build
    return register


def both(estimator_rows):
    """Predicted classes and probabilities."""
    return lambda e: [e.predict(estimator_rows(e)), e.predict_proba(estimator_rows(e))]


FITTED = {}


def fitted(estimator, x, y, options=None):
    """A fitted estimator, its rows by input name and the function that converts it."""
    import skl2onnx
    estimator.fit(x, y)
    FITTED[id(estimator)] = (x, y)
    return estimator, {"X": x}, lambda: skl2onnx.to_onnx(estimator, x[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})


def given(e):
    return FITTED[id(e)][0]


CLASSIFIER = dict(predict=both(given), label=lambda e: FITTED[id(e)][1])
REGRESSOR = dict(predict=lambda e: [e.predict(given(e))], label=lambda e: np.asarray(FITTED[id(e)][1], np.float32).reshape(len(given(e)), -1))


@sk("linear", **CLASSIFIER)
def sk_logistic_regression_text_classes():
    """LogisticRegression with three text classes behind a StandardScaler; ZipMap."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    g, x = table(1)
    return fitted(make_pipeline(StandardScaler(), LogisticRegression()), x, classes(g, x, ("ash", "elm", "oak")))


@sk("linear", **CLASSIFIER)
def sk_logistic_regression_binary_no_zipmap():
    """LogisticRegression with two classes, zipmap=False, MinMaxScaler."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler
    g, x = table(2)
    e = make_pipeline(MinMaxScaler(), LogisticRegression())
    return fitted(e, x, classes(g, x, (0, 1)), {"zipmap": False})


@sk("linear", **REGRESSOR)
def sk_ridge_polynomial():
    """Ridge on PolynomialFeatures of degree 2, RobustScaler."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, RobustScaler
    g, x = table(3)
    return fitted(make_pipeline(RobustScaler(), PolynomialFeatures(2), Ridge()), x, numbers(g, x))


@sk("linear", **REGRESSOR)
def sk_pca_lasso():
    """PCA and Lasso, MaxAbsScaler, Normalizer."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import Lasso
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler, Normalizer
    g, x = table(4)
    return fitted(make_pipeline(MaxAbsScaler(), Normalizer(), PCA(3), Lasso(0.01)), x, numbers(g, x))


@sk("linear", predict=lambda e: [e.predict(given(e)), e.decision_function(given(e))], label=lambda e: FITTED[id(e)][1])
def sk_linear_svc():
    """LinearSVC with three classes: raw scores."""
    from sklearn.svm import LinearSVC
    g, x = table(5)
    return fitted(LinearSVC(max_iter=5000), x, classes(g, x), {"raw_scores": True})


@sk("linear", **CLASSIFIER)
def sk_one_vs_rest():
    """OneVsRestClassifier of LogisticRegression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    g, x = table(6)
    return fitted(OneVsRestClassifier(LogisticRegression()), x, classes(g, x), {"zipmap": False})


@sk("network", **CLASSIFIER)
def sk_mlp_columns():
    """ColumnTransformer: number columns imputed and scaled, text columns one-hot encoded, MLPClassifier; inputs are columns."""
    import pandas
    import skl2onnx
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    g, x = table(7, columns=2)
    x[g.random(len(x)) < 0.1, 0] = np.nan
    frame = pandas.DataFrame({"age": x[:, 0], "income": x[:, 1], "city": g.choice(["Bern", "Genf", "Uri"], len(x)),
                              "colour": g.choice(["red", "blue"], len(x))})
    y = ((np.nan_to_num(x[:, 0]) > x[:, 1]) ^ (frame["city"] == "Uri").to_numpy()).astype(np.int64)
    e = make_pipeline(ColumnTransformer([("n", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income"]),
                                         ("t", OneHotEncoder(handle_unknown="ignore"), ["city", "colour"])]),
                      MLPClassifier((6,), max_iter=80, random_state=0))
    e.fit(frame, y)
    FITTED[id(e)] = (frame, y)
    types = [(n, (StringTensorType if n in ("city", "colour") else FloatTensorType)([None, 1])) for n in frame.columns]
    rows = {n: frame[n].to_numpy(object if n in ("city", "colour") else np.float32).reshape(-1, 1) for n in frame.columns}
    return e, rows, lambda: skl2onnx.to_onnx(e, initial_types=types, options={"zipmap": False}, target_opset={"": 18, "ai.onnx.ml": 3})


@sk("network", **REGRESSOR)
def sk_mlp_regressor_power():
    """MLPRegressor (tanh) on a KBinsDiscretizer of each column joined with the scaled columns (FeatureUnion)."""
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import FeatureUnion, make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, StandardScaler
    g, x = table(8, columns=3)
    union = FeatureUnion([("s", StandardScaler()), ("k", KBinsDiscretizer(3, encode="onehot-dense", quantile_method="averaged_inverted_cdf"))])
    return fitted(make_pipeline(union, MLPRegressor(hidden_layer_sizes=(7,), activation="tanh", max_iter=80, random_state=0)), x, numbers(g, x))


@sk("text", **CLASSIFIER)
def sk_tfidf_logistic_regression():
    """TfidfVectorizer of texts and LogisticRegression: tokens are split inside the model."""
    import skl2onnx
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from skl2onnx.common.data_types import StringTensorType
    g = np.random.default_rng(9)
    good, bad = ["good", "great", "fine", "nice"], ["bad", "poor", "awful", "sad"]
    y = g.integers(0, 2, 80)
    texts = np.array([" ".join(g.choice((bad, good)[k], 3)) + " film" for k in y], object)
    e = make_pipeline(TfidfVectorizer(lowercase=False), LogisticRegression()).fit(texts, y)
    FITTED[id(e)] = (texts, y)
    return e, {"texts": texts.reshape(-1, 1)}, lambda: skl2onnx.to_onnx(
        e, initial_types=[("texts", StringTensorType([None, 1]))], options={"zipmap": False}, target_opset={"": 18, "ai.onnx.ml": 3})


@sk("kernel", **REGRESSOR)
def sk_svr_rbf():
    """SVR with a Gaussian kernel."""
    from sklearn.svm import SVR
    g, x = table(10, 60, 3)
    return fitted(SVR(C=2.0), x, numbers(g, x))


@sk("kernel", tolerance=5e-3, **CLASSIFIER)
def sk_svc_polynomial():
    """SVC with a polynomial kernel and three classes; probabilities are coupled by iterations that end early in onnxruntime."""
    from sklearn.svm import SVC
    g, x = table(11, 60, 3)
    return fitted(SVC(kernel="poly", degree=2, probability=True, random_state=0), x, classes(g, x), {"zipmap": False})


@sk("kernel", forward_tolerance=2e-2, tolerance=2e-2, **REGRESSOR)
def sk_gaussian_process():
    """GaussianProcessRegressor: distances to the training rows, exponentials, a product."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF
    g, x = table(12, 60, 3)
    return fitted(GaussianProcessRegressor(RBF(1.5), alpha=0.1, random_state=0), x, numbers(g, x))


NEIGHBOURS = "it only chooses the nearest centre; outputs are numbers of clusters and distances, and targets for them do not exist"


@sk("neighbours", trainable=["*"], **REGRESSOR)
def sk_neighbours_regressor():
    """KNeighborsRegressor: distances by Scan or CDist, TopK, the mean of the targets found, which are trained."""
    from sklearn.neighbors import KNeighborsRegressor
    g, x = table(13, 40, 3)
    return fitted(KNeighborsRegressor(3), x, numbers(g, x))


@sk("neighbours", trains=False, reason=NEIGHBOURS, predict=lambda e: [e.predict(given(e)), e.transform(given(e))])
def sk_k_means():
    """KMeans: distances to centres and the nearest one."""
    from sklearn.cluster import KMeans
    g, x = table(14, 60, 3)
    return fitted(KMeans(4, n_init=1, random_state=0), x, None)


@sk("bayes", **CLASSIFIER)
def sk_gaussian_naive_bayes():
    """GaussianNB: logarithms of densities."""
    from sklearn.naive_bayes import GaussianNB
    g, x = table(15)
    return fitted(GaussianNB(), x, classes(g, x), {"zipmap": False})


@sk("bayes", **CLASSIFIER)
def sk_linear_discriminant():
    """LinearDiscriminantAnalysis."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    g, x = table(16)
    return fitted(LinearDiscriminantAnalysis(), x, classes(g, x), {"zipmap": False})


@sk("trees", trainable=LEAVES, **REGRESSOR)
def sk_decision_tree_regressor():
    """DecisionTreeRegressor: the weights of leaves are trained, splits are not."""
    from sklearn.tree import DecisionTreeRegressor
    g, x = table(17)
    return fitted(DecisionTreeRegressor(max_depth=4, random_state=0), x, numbers(g, x))


@sk("trees", trainable=LEAVES, **CLASSIFIER)
def sk_random_forest():
    """RandomForestClassifier, three text classes."""
    from sklearn.ensemble import RandomForestClassifier
    g, x = table(18)
    return fitted(RandomForestClassifier(5, max_depth=3, random_state=0), x, classes(g, x, ("a", "b", "c")), {"zipmap": False})


@sk("trees", trainable=LEAVES, **REGRESSOR)
def sk_gradient_boosting():
    """GradientBoostingRegressor."""
    from sklearn.ensemble import GradientBoostingRegressor
    g, x = table(19)
    return fitted(GradientBoostingRegressor(n_estimators=8, max_depth=2, random_state=0), x, numbers(g, x))


@sk("ensemble", **CLASSIFIER)
def sk_soft_voting():
    """VotingClassifier (soft) of a linear model and an MLP."""
    from sklearn.ensemble import VotingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    g, x = table(21)
    e = VotingClassifier([("l", LogisticRegression()), ("m", MLPClassifier((5,), max_iter=60, random_state=0))], voting="soft", flatten_transform=False)
    return fitted(e, x, classes(g, x), {"zipmap": False})


@sk("ensemble", **REGRESSOR)
def sk_stacking_regressor():
    """StackingRegressor: ridge over a linear model and an SVR."""
    from sklearn.ensemble import StackingRegressor
    from sklearn.linear_model import LinearRegression, Ridge
    from sklearn.svm import SVR
    g, x = table(22, 60, 3)
    return fitted(StackingRegressor([("l", LinearRegression()), ("s", SVR())], Ridge()), x, numbers(g, x))


@sk("ensemble", **CLASSIFIER)
def sk_calibrated_classifier():
    """CalibratedClassifierCV of LogisticRegression: sigmoids of scores, averaged."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.linear_model import LogisticRegression
    g, x = table(23)
    return fitted(CalibratedClassifierCV(LogisticRegression(), cv=2), x, classes(g, x), {"zipmap": False})


@sk("ensemble", trains=False, reason="an isolation forest counts the splits on a path; nothing in it has a gradient",
    predict=lambda e: [e.predict(given(e)), e.decision_function(given(e))])
def sk_isolation_forest():
    """IsolationForest: outliers by the depth of their leaves."""
    from sklearn.ensemble import IsolationForest
    import skl2onnx
    g, x = table(24, 80, 3)
    e = IsolationForest(n_estimators=4, max_samples=16, random_state=0).fit(x)
    FITTED[id(e)] = (x, None)
    return e, {"X": x}, lambda: skl2onnx.to_onnx(e, x[:1], target_opset={"": 18, "ai.onnx.ml": 3})


def boosted(estimator, x, y, kind):
    from onnxmltools import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    estimator.fit(x, y)
    FITTED[id(estimator)] = (x, y)
    convert = {"lightgbm": convert_lightgbm, "xgboost": convert_xgboost}[kind]
    more = {"zipmap": False} if kind == "lightgbm" else {}
    return estimator, {"X": x}, lambda: convert(estimator, initial_types=[("X", FloatTensorType([None, x.shape[1]]))], target_opset=15, **more)


ONNXMLTOOLS = dict(made_by="onnxmltools.convert")


@sk("trees", trainable=LEAVES, **REGRESSOR, **ONNXMLTOOLS)
def lightgbm_regressor():
    """LGBMRegressor."""
    from lightgbm import LGBMRegressor
    g, x = table(25)
    return boosted(LGBMRegressor(n_estimators=5, num_leaves=6, n_jobs=1, verbose=-1), x, numbers(g, x), "lightgbm")


@sk("trees", trainable=LEAVES, **CLASSIFIER, **ONNXMLTOOLS)
def lightgbm_classifier():
    """LGBMClassifier, three classes."""
    from lightgbm import LGBMClassifier
    g, x = table(26)
    return boosted(LGBMClassifier(n_estimators=4, num_leaves=5, n_jobs=1, verbose=-1), x, classes(g, x), "lightgbm")


@sk("trees", trainable=LEAVES, **REGRESSOR, **ONNXMLTOOLS)
def xgboost_regressor():
    """XGBRegressor."""
    from xgboost import XGBRegressor
    g, x = table(27)
    return boosted(XGBRegressor(n_estimators=5, max_depth=3, n_jobs=1), x, numbers(g, x), "xgboost")


@sk("trees", trainable=LEAVES, **CLASSIFIER, **ONNXMLTOOLS)
def xgboost_classifier():
    """XGBClassifier, two classes."""
    from xgboost import XGBClassifier
    g, x = table(28)
    return boosted(XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1), x, classes(g, x, (0, 1)), "xgboost")
