//! Plots and figures of reports and of live screens, as pure functions from plain data to text and SVG.
//!
//! It refuses to know a broker, a socket or a request: `bench` and `thalweg top` collect the data.

// Text, numbers and plots.
pub mod text;
pub mod units;
pub mod brief;
pub mod plot;

// Figures of a broker.
pub mod samples;
pub mod figures;
