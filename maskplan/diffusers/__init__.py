"""Plans in the video transformers of Hugging Face diffusers: Wan and HunyuanVideo.

Needs the extra: `pip install 'maskplan[diffusers]'`. Importing this module does not import
diffusers.
"""

from maskplan.diffusers.planned import PlannedAttention, attach

__all__ = ["PlannedAttention", "attach"]
