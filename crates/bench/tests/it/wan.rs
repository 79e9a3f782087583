//! Links of the emulated network: delay, order, loss, bandwidth and cuts. They need neither root nor a device.

use std::time::Duration;

use bench::wan::{Counts, Lateness, Link, Network, destination};
use proptest::prelude::*;

const DELAY: Duration = Duration::from_millis(12);
const A: usize = 0;
const B: usize = 1;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn network(link: &Link) -> Network {
    Network::new(3, link, 7)
}

/// Returns the packets that have arrived by a time, with the times at which they were due.
fn arrived(network: &mut Network, now: Duration) -> Vec<(Duration, Vec<u8>)> {
    std::iter::from_fn(|| network.arrive(now)).map(|arrival| (arrival.due, arrival.packet)).collect()
}

#[test]
fn a_packet_arrives_after_the_delay_of_its_direction() {
    let mut network = network(&Link::with_delay(DELAY));
    network.link_mut(B, A).delay = ms(30);
    assert!(network.send(ms(100), A, B, b"there"));
    assert!(network.send(ms(100), B, A, b"back"));
    assert_eq!(network.next_due(), Some(ms(112)));
    assert_eq!(network.arrive(ms(112) - Duration::from_nanos(1)), None);
    assert_eq!(arrived(&mut network, ms(112)), [(ms(112), b"there".to_vec())]);
    assert_eq!(arrived(&mut network, ms(1000)), [(ms(130), b"back".to_vec())]);
    assert_eq!(network.next_due(), None);
}

#[test]
fn a_link_keeps_the_order_when_its_delay_falls() {
    let mut network = network(&Link::with_delay(DELAY));
    network.send(ms(0), A, B, b"1");
    network.link_mut(A, B).delay = ms(1);
    network.send(ms(2), A, B, b"2");
    network.send(ms(20), A, B, b"3");
    assert_eq!(arrived(&mut network, ms(11)), []);
    let all = [(ms(12), b"1".to_vec()), (ms(12), b"2".to_vec()), (ms(21), b"3".to_vec())];
    assert_eq!(arrived(&mut network, ms(50)), all);
}

#[test]
fn loss_has_its_rate_and_repeats_with_its_seed() {
    let kept = |seed| {
        let mut network = Network::new(2, &Link { loss: 0.1, ..Link::with_delay(DELAY) }, seed);
        (0..10_000).map(|_| network.send(ms(0), A, B, b"packet")).collect::<Vec<_>>()
    };
    let lost = kept(1).iter().filter(|is_kept| !**is_kept).count();
    assert!((850..1150).contains(&lost), "{lost} of 10,000");
    assert_eq!(kept(1), kept(1));
    assert_ne!(kept(1), kept(2));
}

#[test]
fn a_narrow_link_spaces_packets_and_drops_what_finds_no_room() {
    // A packet of 1000 bytes takes 8 ms, and three of them fit.
    let narrow = Link { bits_per_s: Some(1_000_000), queue_bytes: 3000, ..Link::with_delay(DELAY) };
    let mut network = network(&narrow);
    let kept = [(); 5].map(|()| network.send(ms(0), A, B, &[0; 1000]));
    assert_eq!(kept, [true, true, true, false, false]);
    let dues: Vec<Duration> = arrived(&mut network, ms(1000)).into_iter().map(|(due, _)| due).collect();
    assert_eq!(dues, [8, 16, 24].map(|sent| ms(sent) + DELAY));
    assert_eq!(network.counts(A, B), Counts { arrived: 3, overflowed: 2, ..Counts::default() });
    // The queue is empty after 24 ms, and other links have their own bandwidth.
    assert!(network.send(ms(24), A, B, &[0; 3000]));
    assert!(network.send(ms(24), A, 2, &[0; 3000]));
}

#[test]
fn a_cut_ends_one_direction_with_what_is_in_flight() {
    let mut network = network(&Link::with_delay(DELAY));
    network.send(ms(0), A, B, b"in flight");
    network.send(ms(0), B, A, b"other direction");
    network.link_mut(A, B).is_cut = true;
    assert!(!network.send(ms(5), A, B, b"cut"));
    assert_eq!(arrived(&mut network, ms(50)), [(ms(12), b"other direction".to_vec())]);
    assert_eq!(network.counts(A, B), Counts { cut: 2, ..Counts::default() });
    network.link_mut(A, B).is_cut = false;
    network.send(ms(60), A, B, b"healed");
    assert_eq!(arrived(&mut network, ms(80)), [(ms(72), b"healed".to_vec())]);
}

#[test]
fn only_packets_of_ipv4_have_a_destination() {
    let mut packet = [0; 20];
    packet[0] = 0x45;
    packet[16..].copy_from_slice(&[10, 99, 0, 2]);
    assert_eq!(destination(&packet), Some([10, 99, 0, 2].into()));
    assert_eq!(destination(&packet[..19]), None);
    packet[0] = 0x60;
    assert_eq!(destination(&packet), None);
    assert_eq!(destination(&[]), None);
}

#[test]
fn a_measurement_counts_while_the_emulator_is_on_time() {
    let late = |p99_us| Lateness { p99_us, ..Lateness::default() };
    assert!(late(999.0).is_valid());
    assert!(!late(1000.0).is_valid());
}

proptest! {
    #[test]
    fn every_packet_arrives_in_order_or_is_counted(
        sends in prop::collection::vec((0u64..20, 1usize..2000, any::<bool>()), 1..200),
        loss in 0.0f64..0.5,
        kbits_per_s in prop::option::of(100u64..10_000),
    ) {
        let link = Link {
            loss,
            bits_per_s: kbits_per_s.map(|kbits| kbits * 1000),
            queue_bytes: 10_000,
            ..Link::with_delay(DELAY)
        };
        let mut network = network(&link);
        let mut now = Duration::ZERO;
        let mut last = Duration::ZERO;
        for (pause_ms, bytes, is_cut) in &sends {
            now += ms(*pause_ms);
            network.link_mut(A, B).is_cut = *is_cut;
            network.send(now, A, B, &vec![0; *bytes]);
            for (due, _) in arrived(&mut network, now) {
                prop_assert!(last <= due && due <= now);
                last = due;
            }
        }
        arrived(&mut network, Duration::from_secs(3600));
        let Counts { arrived, lost, overflowed, cut } = network.counts(A, B);
        prop_assert_eq!(arrived + lost + overflowed + cut, sends.len() as u64);
        prop_assert_eq!(network.next_due(), None);
    }
}
