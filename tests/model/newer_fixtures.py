"""The tiny random checkpoints of the families of 2024 and 2025; as in fixture_models.py, every
special feature is on and matters within the 200 tokens of the prompt.
"""

from typing import Any

from fixture_models import (
    ABSENT,
    CONTEXT,
    FULL,
    LLAMA3,
    LONGROPE,
    ORIGINAL,
    SLIDING,
    SMALL,
    YARN,
    Fixture,
)

OLMO3_ROPE = dict(
    full_attention={**YARN, "rope_theta": 20000.0},
    sliding_attention=dict(rope_type="default", rope_theta=20000.0),
)
MINICPM_ROPE = dict(  # MiniCPM 4: lists for its whole context
    rope_type="longrope",
    short_factor=[1.0 + 0.3 * i for i in range(4)],
    long_factor=[1.0 + 0.3 * i for i in range(4)],
    original_max_position_embeddings=CONTEXT,
    rope_theta=10000.0,
)
VISION = dict(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=28,
    crop_size=28,
)
AUDIO = dict(
    hidden_size=8,
    intermediate_size=8,
    num_blocks=1,
    num_attention_heads=2,
    ext_pw_out_channel=8,
    depthwise_separable_out_channel=8,
    nemo_conv_channels=4,
    input_size=8,
    bias_max_distance=8,
)


def small(model_type: str, layers: int = 2, computed_as: str = "", **settings: Any) -> Fixture:
    """A bfloat16 fixture of half the usual width."""
    whole = {**SMALL, "head_dim": 16, **settings}
    return Fixture(model_type, "bf16", whole, layers=layers, computed_as=computed_as)


def rope(base: float, part: float = 1.0) -> dict[str, Any]:
    partial = {} if part == 1 else {"partial_rotary_factor": part}
    return dict(rope_type="default", rope_theta=base, **partial)


MODELS = {
    "olmo3": small(
        "olmo3",
        layers=3,
        head_dim=ABSENT,
        sliding_window=39,
        layer_types=[SLIDING, FULL, SLIDING],
        rope_parameters=OLMO3_ROPE,
    ),
    "glm": small("glm", rope_parameters=rope(20000.0, 0.5)),
    "glm4": small("glm4", attention_bias=False, rope_parameters=rope(10000.0, 0.5)),
    "ernie4-5": small("ernie4_5", use_bias=True, rope_theta=20000.0, tie_word_embeddings=True),
    "seed-oss": small(
        "seed_oss", attention_bias=True, attention_out_bias=False, rope_theta=20000.0
    ),
    "cohere": small(
        "cohere",
        head_dim=ABSENT,
        logit_scale=0.6,
        rms_norm_eps=ABSENT,
        rope_theta=20000.0,
        tie_word_embeddings=True,
    ),
    "cohere-plus": small(
        "cohere",
        head_dim=ABSENT,
        use_qk_norm=True,
        logit_scale=0.6,
        rms_norm_eps=ABSENT,
        rope_theta=20000.0,
        tie_word_embeddings=True,
    ),
    "cohere2": small(
        "cohere2",
        layers=4,
        head_dim=ABSENT,
        logit_scale=0.6,
        rms_norm_eps=ABSENT,
        rope_theta=20000.0,
        sliding_window=43,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL],
        tie_word_embeddings=True,
    ),
    "exaone": small(
        "exaone",
        computed_as="llama",
        num_layers=2,
        num_hidden_layers=ABSENT,
        layer_norm_epsilon=1e-5,
        rms_norm_eps=ABSENT,
        activation_function="silu",
        hidden_act=ABSENT,
        rope_parameters=LLAMA3,
    ),
    "exaone4": small(
        "exaone4",
        layers=3,
        sliding_window=35,
        layer_types=[SLIDING, SLIDING, FULL],
        rope_parameters=LLAMA3,
    ),
    "minicpm": small(
        "minicpm",
        computed_as="granite",
        head_dim=ABSENT,
        scale_emb=6,
        scale_depth=1.0,
        dim_model_base=40,
        rope_parameters=MINICPM_ROPE,
    ),
    "phi4-multimodal": Fixture(
        "phi4_multimodal",
        "bf16",
        dict(
            **SMALL,
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_parameters=LONGROPE,
            original_max_position_embeddings=ORIGINAL,
            tie_word_embeddings=True,
            vision_config=VISION,
            audio_config=AUDIO,
        ),
        lengths=(CONTEXT,),
        layers=2,
    ),
}
