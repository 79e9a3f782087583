//! Pages of the web console as pure functions from plain data to HTML, and the plots and figures of all reports.
//!
//! It refuses to know a broker, a socket or a request: `doors` collects the data and serves the pages. `bench` and
//! `thalweg top` use the figures and the plots.

// Text, numbers and plots.
pub mod text;
pub mod units;
pub mod brief;
pub mod plot;

// Figures of a broker.
pub mod samples;
pub mod figures;
pub mod alerts;

// Parts of pages.
pub mod assets;
pub mod decode;
pub mod parts;
pub mod shell;

// Pages.
pub mod pages;

pub use maud::Markup;
