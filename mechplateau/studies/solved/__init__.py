"""The solved moving window sum, taken apart: a study of ours."""
