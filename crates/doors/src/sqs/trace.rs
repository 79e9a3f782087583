//! Trace context in the form of AWS X-Ray, which SQS keeps as the system attribute `AWSTraceHeader`.
//!
//! Its ids are those of W3C Trace Context with other punctuation
//! (<https://docs.aws.amazon.com/xray/latest/devguide/xray-concepts.html#xray-concepts-tracingheader>):
//! `Root=1-<8 digits>-<24 digits>;Parent=<16 digits>;Sampled=1`.

use engine::queue::header;
use engine::trace::{Carrier, TraceContext};

/// Header in which the broker keeps the attribute.
pub const CARRIER: Carrier = Carrier { parent: header::TRACE, state: None, parse };

/// Reads a context. Without a parent, or while the decision is still requested (`Sampled=?`), there is none.
fn parse(text: &[u8]) -> Option<TraceContext> {
    let text = std::str::from_utf8(text).ok()?;
    let field = |name: &str| text.split(';').find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='));
    let (time, unique) = field("Root")?.strip_prefix("1-")?.split_once('-')?;
    let sampled = match field("Sampled")? {
        "1" => "01",
        "0" => "00",
        _ => return None,
    };
    let is_split_well = time.len() == 8;
    let context = format!("00-{time}{unique}-{}-{sampled}", field("Parent")?);
    TraceContext::parse(context.as_bytes()).filter(|_| is_split_well)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of AWS's developer guide for X-Ray, "Tracing header".
    #[test]
    fn the_header_of_x_ray_is_a_context() {
        let text = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
        let context = parse(text.as_bytes()).expect("a context");
        assert_eq!(context.trace, 0x5759_e988_bd86_2e3f_e1be_46a9_9427_2793_u128.to_be_bytes());
        assert_eq!(context.span, 0x5399_5c3f_42cd_8ad8_u64.to_be_bytes());
        assert!(context.is_sampled);
        let off = text.replace("Sampled=1", "Sampled=0").replace(';', "; ");
        assert_eq!(parse(off.as_bytes()).map(|context| context.is_sampled), Some(false));
    }

    #[test]
    fn a_header_without_a_decision_or_a_parent_is_no_context() {
        let root = "Root=1-5759e988-bd862e3fe1be46a994272793";
        for rest in ["", ";Sampled=1", ";Parent=53995c3f42cd8ad8", ";Parent=53995c3f42cd8ad8;Sampled=?"] {
            assert_eq!(parse(format!("{root}{rest}").as_bytes()), None, "{rest}");
        }
        let whole = ";Parent=53995c3f42cd8ad8;Sampled=1";
        for root in ["Root=2-5759e988-bd862e3fe1be46a994272793", "Root=1-5759e9-88bd862e3fe1be46a994272793", "x"] {
            assert_eq!(parse(format!("{root}{whole}").as_bytes()), None, "{root}");
        }
    }
}
