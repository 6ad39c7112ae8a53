"""Settings that solo-learn's methods have of their own; their defaults come from the methods' classes."""

from solo_hcsc.encoders.settings import came_later
from solo_hcsc.errors import ArgumentError
from solo_hcsc.methods.names import method_names
from solo_hcsc.settings import NOT_NEGATIVE, POSITIVE, SHARE, Setting, nearest, yes_or_no

_LATER = {"vibcreg": "1.0.3", "supcon": "1.0.4", "mocov3": "1.0.5", "mae": "1.0.6"}  # and solo-learn's release
OWN = (
    Setting("base_tau_momentum", float, None, SHARE, "momentum of the momentum encoder at the start"),
    Setting("final_tau_momentum", float, None, SHARE, "momentum of the momentum encoder at the end"),
    Setting("momentum_classifier", bool, False, None, "train an online classifier on the momentum encoder too"),
    Setting("proj_output_dim", int, None, POSITIVE, "size of the projection"),
    Setting("proj_hidden_dim", int, None, POSITIVE, "size of the projector's hidden layers"),
    Setting("pred_hidden_dim", int, None, None, "size of the predictor's hidden layer"),
    Setting("temperature", float, None, POSITIVE, "temperature of the loss"),
    Setting("temperature_q", float, None, None, "temperature of the queries"),
    Setting("temperature_k", float, None, None, "temperature of the keys"),
    Setting("queue_size", int, None, NOT_NEGATIVE, "embeddings kept in the queue"),
    Setting("num_prototypes", int, None, None, "number of prototypes", several=True),
    Setting("sk_epsilon", float, None, None, "SwAV: entropy regularisation of Sinkhorn-Knopp"),
    Setting("sk_iters", int, None, None, "SwAV: iterations of Sinkhorn-Knopp"),
    Setting("freeze_prototypes_epochs", int, None, None, "SwAV: first epochs with fixed prototypes"),
    Setting("epoch_queue_starts", int, None, None, "SwAV: epoch from which the queue is used"),
    Setting("kmeans_iters", int, None, None, "DeepCluster v2: iterations of k-means"),
    Setting("supervised", bool, False, None, "SimCLR: use the labels (supervised contrastive learning)"),
    Setting("clip_grad", float, None, None, "DINO: clip each parameter's gradient norm; 0: off"),
    Setting("freeze_last_layer", int, None, None, "DINO: first epochs with a fixed last layer"),
    Setting("norm_last_layer", yes_or_no, None, None, "DINO: normalise the last layer"),
    Setting("use_bn_in_head", yes_or_no, None, None, "DINO: batch norm in the head"),
    Setting("student_temperature", float, None, None, "DINO: temperature of the student"),
    Setting("teacher_temperature", float, None, None, "DINO: temperature of the teacher"),
    Setting("warmup_teacher_temperature", float, None, None, "DINO: temperature of the teacher at the start"),
    Setting("warmup_teacher_temperature_epochs", int, None, None, "DINO: epochs of the teacher's temperature warm-up"),
    Setting("sim_loss_weight", float, None, None, "VICReg: weight of the invariance term"),
    Setting("var_loss_weight", float, None, None, "VICReg: weight of the variance term"),
    Setting("cov_loss_weight", float, None, None, "VICReg: weight of the covariance term"),
    Setting("lamb", float, None, None, "Barlow Twins: weight of the off-diagonal terms"),
    Setting("scale_loss", float, None, None, "Barlow Twins: scale of the loss"),
    Setting("whitening_iters", int, None, None, "W-MSE: whitenings per step"),
    Setting("whitening_size", int, None, None, "W-MSE: images whitened together"),
    Setting("whitening_eps", float, None, None, "W-MSE: shrinkage of the covariance"),
)


def check_method(name: str, argument: str = "`method`") -> None:
    """Refuse a method that is not there, with the nearest one or the release that brought it."""
    known = method_names()
    if name not in known and name in _LATER:
        raise ArgumentError(f"{argument} {name}: {came_later(name, _LATER[name])}")
    if name not in known:
        near = nearest(name, known)
        raise ArgumentError(
            f"{argument} {name}: unknown; {near + ' or ' if near else ''}choose from {', '.join(known)}"
        )
