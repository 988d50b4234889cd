"""The paper, figure by figure: what is trained, drawn, claimed and found."""
