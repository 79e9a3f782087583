//! Addresses of the nodes, and faults between them: each node in its own network namespace on a bridge, or all on the
//! loopback interface, where nothing can be cut.
//!
//! Cuts are filters of packets at the `ingress` of an interface, as classic BPF: that needs neither `netem` nor
//! `act_gact`, which many kernels do not have.

use std::process::{Command, Stdio};

/// Outcome of a step. An error is a sentence for the person who reads the report.
pub type Outcome<T = ()> = Result<T, String>;

/// BPF that drops everything.
const DROP_ALL: &str = "1,6 0 0 2,";
/// BPF that drops one packet in ten at random.
const DROP_TENTH: &str = "4,32 0 0 4294963256,53 0 1 3865470566,6 0 0 2,6 0 0 4294967295,";

/// Network of a round. Dropping it removes the namespaces and the bridge.
pub enum Network {
    Loopback { first_port: u16 },
    Namespaces { name: String, subnet: u8, nodes: usize },
}

impl Network {
    /// Creates namespaces for these nodes; or the loopback network with the reason why not.
    pub fn create(nodes: usize, is_loopback: bool) -> (Self, Option<String>) {
        let id = std::process::id();
        let loopback = Self::Loopback { first_port: 20_000 + (id % 4000) as u16 * 5 };
        if is_loopback {
            return (loopback, None);
        }
        let network = Self::Namespaces { name: format!("tw{}", id % 10_000), subnet: (id % 200) as u8 + 20, nodes };
        match network.build() {
            Ok(()) => (network, None),
            Err(why) => (loopback, Some(why)),
        }
    }

    fn build(&self) -> Outcome {
        let Self::Namespaces { name, nodes, .. } = self else { return Ok(()) };
        ip(&["link", "add", name, "type", "bridge"])?;
        ip(&["addr", "add", &format!("{}/24", self.host(254)), "dev", name])?;
        ip(&["link", "set", name, "up"])?;
        for node in 1..=*nodes as u64 {
            let (space, outside) = (self.space(node), self.outside(node));
            ip(&["netns", "add", &space])?;
            ip(&["link", "add", &outside, "type", "veth", "peer", "name", "e0", "netns", &space])?;
            ip(&["link", "set", &outside, "master", name, "up"])?;
            ip(&["-n", &space, "addr", "add", &format!("{}/24", self.host(node)), "dev", "e0"])?;
            ip(&["-n", &space, "link", "set", "e0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            tc(&["-n", &space, "qdisc", "add", "dev", "e0", "clsact"])?;
            tc(&["qdisc", "add", "dev", &outside, "clsact"])?;
        }
        Ok(())
    }

    pub fn can_cut(&self) -> bool {
        matches!(self, Self::Namespaces { .. })
    }

    pub fn name(&self) -> &'static str {
        if self.can_cut() { "namespaces" } else { "loopback" }
    }

    /// Returns the IP address of a node.
    pub fn host(&self, node: u64) -> String {
        match self {
            Self::Loopback { .. } => "127.0.0.1".to_owned(),
            Self::Namespaces { subnet, .. } => format!("10.77.{subnet}.{node}"),
        }
    }

    /// Returns the port of a node for one of its doors: 0 to 9.
    pub fn port(&self, node: u64, door: u16) -> u16 {
        match self {
            Self::Loopback { first_port } => first_port + node as u16 * 10 + door,
            Self::Namespaces { .. } => 7400 + door,
        }
    }

    /// Returns a command that runs a program at a node.
    pub fn command(&self, node: u64, program: &str) -> Command {
        match self {
            Self::Loopback { .. } => Command::new(program),
            Self::Namespaces { .. } => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &self.space(node), program]);
                command
            }
        }
    }

    fn space(&self, node: u64) -> String {
        let Self::Namespaces { name, .. } = self else { return String::new() };
        format!("{name}n{node}")
    }

    fn outside(&self, node: u64) -> String {
        let Self::Namespaces { name, .. } = self else { return String::new() };
        format!("{name}v{node}")
    }

    /// Drops what others send to a node, in silence: from one of them, or from all with the clients.
    pub fn cut_to(&self, node: u64, from: Option<u64>) -> Outcome {
        let Self::Namespaces { subnet, .. } = self else { return Err("nothing can be cut on loopback".into()) };
        let program = match from {
            None => DROP_ALL.to_owned(),
            // Offset 26 of the frame is the source address in the IP header.
            Some(from) => {
                let address = u32::from_be_bytes([10, 77, *subnet, from as u8]);
                format!("4,32 0 0 26,21 0 1 {address},6 0 0 2,6 0 0 4294967295,")
            }
        };
        let space = self.space(node);
        tc(&["-n", &space, "filter", "add", "dev", "e0", "ingress", "bpf", "da", "bytecode", &program])
    }

    /// Drops all that a node sends, in silence.
    pub fn cut_from(&self, node: u64) -> Outcome {
        tc(&["filter", "add", "dev", &self.outside(node), "ingress", "bpf", "da", "bytecode", DROP_ALL])
    }

    /// Drops a tenth of the packets that a node sends and receives.
    pub fn lose_tenth(&self, node: u64) -> Outcome {
        let (space, outside) = (self.space(node), self.outside(node));
        tc(&["-n", &space, "filter", "add", "dev", "e0", "ingress", "bpf", "da", "bytecode", DROP_TENTH])?;
        tc(&["filter", "add", "dev", &outside, "ingress", "bpf", "da", "bytecode", DROP_TENTH])
    }

    /// Ends all cuts and losses at a node.
    pub fn heal(&self, node: u64) -> Outcome {
        if !self.can_cut() {
            return Ok(());
        }
        tc(&["-n", &self.space(node), "filter", "del", "dev", "e0", "ingress"])?;
        tc(&["filter", "del", "dev", &self.outside(node), "ingress"])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Self::Namespaces { name, nodes, .. } = &*self {
            // A failure leaves a namespace behind, which nothing uses.
            for node in 1..=*nodes as u64 {
                ip(&["netns", "del", &self.space(node)]).unwrap_or_default();
            }
            ip(&["link", "del", name]).unwrap_or_default();
        }
    }
}

fn ip(args: &[&str]) -> Outcome {
    call("ip", args)
}

fn tc(args: &[&str]) -> Outcome {
    call("tc", args)
}

/// Runs a program to its end.
pub fn call(program: &str, args: &[&str]) -> Outcome {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{program} {}`: {}", args.join(" "), why.trim()))
}
