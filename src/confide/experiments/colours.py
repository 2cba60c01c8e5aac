"""Okabe and Ito's colours: told apart by colour-blind readers and on a dark page."""

BLUE, GREEN, ORANGE, PINK, RED, SKY = "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#56B4E9"
