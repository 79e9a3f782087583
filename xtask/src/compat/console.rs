//! `cargo xtask compat console`: Chromium uses the web console of a broker of this tree.

use super::broker;
use super::clients::{debian, npm, venv};
use crate::run::{Call, Outcome, root};

const SOURCES: &str = "compat/console";
const PYTHON: &str = "target/compat/console-python";
const AXE: &str = "target/compat/console-axe";
/// Folder with a screenshot of each page in each theme and width.
const SCREENSHOTS: &str = "target/compat/console-screenshots";

pub fn run() -> Outcome {
    debian("chromium", "chromium")?;
    debian("chromedriver", "chromium-driver")?;
    venv(PYTHON, &format!("{SOURCES}/requirements.txt"))?;
    npm(AXE, SOURCES)?;
    let broker = broker::one("http", &["audit=on".to_owned()])?;
    let locked: Vec<String> =
        ["auth=required", "authorization=true", "users=ann:pencil", "super_users=ann"].map(str::to_owned).to_vec();
    let locked = broker::one("http", &locked)?;
    let axe = root().join(format!("{AXE}/node_modules/axe-core/axe.min.js"));
    let suite = Call::new(format!("{PYTHON}/bin/python")).arg(format!("{SOURCES}/suite.py"));
    suite.arg(&broker.address).arg(axe.display().to_string()).arg(SCREENSHOTS).arg(&locked.address).run()
}
