//! Files of the console that are not pages: its style, its script and its icon.

/// File that browsers fetch together with a page.
pub struct Asset {
    pub name: &'static str,
    pub content_type: &'static str,
    pub text: &'static str,
}

pub const STYLE: &str = "console.css";
pub const SCRIPT: &str = "console.js";
pub const ICON: &str = "icon.svg";

static ASSETS: [Asset; 3] = [
    Asset { name: STYLE, content_type: "text/css; charset=utf-8", text: include_str!("../assets/console.css") },
    Asset { name: SCRIPT, content_type: "text/javascript; charset=utf-8", text: include_str!("../assets/console.js") },
    Asset { name: ICON, content_type: "image/svg+xml", text: include_str!("../assets/icon.svg") },
];

/// Policy of every page for the browser: only the scripts, styles and images of the console itself, and no inline ones.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                                           connect-src 'self'; form-action 'self'; base-uri 'none'; \
                                           frame-ancestors 'none'";

pub fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

impl Asset {
    /// Returns the entity tag, which changes with the text (FNV-1a).
    pub fn tag(&self) -> String {
        let hash = self
            .text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        format!("\"{hash:016x}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_a_tag_of_its_own() {
        let tags: Vec<String> = [STYLE, SCRIPT, ICON].iter().filter_map(|name| find(name)).map(Asset::tag).collect();
        assert_eq!(tags.len(), ASSETS.len());
        assert!(tags[0] != tags[1] && tags[1] != tags[2], "{tags:?}");
        assert!(find("console.map").is_none());
    }
}
