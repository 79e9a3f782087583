//! Places on the earth, and the cells in which a sorted set finds them.
//!
//! A cell is a rectangle of degrees. Its number interleaves the bits of both coordinates (a geohash), so that the
//! places in a cell have successive scores. Numbers, distances and the order of cells are those of Redis (`geohash.c`
//! and `geohash_helper.c`), so that members written by Redis are found here, and in the same order.

use std::ops::Range;

const LONGITUDES: Span = Span { min: -180.0, max: 180.0 };
/// Latitudes that the projection has, in degrees.
const LATITUDES: Span = Span { min: -85.051_128_78, max: 85.051_128_78 };
/// Latitudes of the geohashes that other programs read.
const ALL_LATITUDES: Span = Span { min: -90.0, max: 90.0 };
/// Number of bits of each coordinate in a score.
const STEPS_MAX: u32 = 26;
const EARTH_RADIUS_M: f64 = 6_372_797.560_856;
/// Half of the width of the projection, in meters.
const MERCATOR_MAX_M: f64 = 20_037_726.37;
/// Digits of the geohashes that other programs read.
const DIGITS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
/// Bits of a number that belong to the longitude. The others belong to the latitude.
const LONGITUDE_BITS: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Range of degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Span {
    fn contains(self, degrees: f64) -> bool {
        (self.min..=self.max).contains(&degrees)
    }

    /// Returns the index of the part that contains the degrees, if the span has two to the power of `steps` parts.
    fn part_of(self, degrees: f64, steps: u32) -> u32 {
        ((degrees - self.min) / (self.max - self.min) * (1u64 << steps) as f64) as u32
    }

    fn part(self, index: u32, steps: u32) -> Self {
        let edge = |index: u64| self.min + index as f64 / (1u64 << steps) as f64 * (self.max - self.min);
        Self { min: edge(u64::from(index)), max: edge(u64::from(index) + 1) }
    }

    fn middle(self) -> f64 {
        f64::midpoint(self.min, self.max)
    }
}

/// Place, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

impl Place {
    /// Returns `None` for coordinates that are not in the projection.
    pub(super) fn new(longitude: f64, latitude: f64) -> Option<Self> {
        (LONGITUDES.contains(longitude) && LATITUDES.contains(latitude)).then_some(Self { longitude, latitude })
    }

    /// Returns the score of a member at this place: the number of its smallest cell.
    pub(super) fn score(self) -> f64 {
        Cell::of(self, STEPS_MAX, LATITUDES).number as f64
    }

    /// Returns the middle of the smallest cell with this score. Any score is one, as in Redis.
    pub(super) fn of_score(score: f64) -> Self {
        let area = Cell { number: number_of(score), steps: STEPS_MAX }.area();
        let within = |degrees: f64, span: Span| degrees.clamp(span.min, span.max);
        Self {
            longitude: within(area.longitudes.middle(), LONGITUDES),
            latitude: within(area.latitudes.middle(), LATITUDES),
        }
    }

    /// Returns the distance in meters, on a sphere.
    pub(super) fn distance(self, other: Self) -> f64 {
        let [from, to] =
            [self, other].map(|place| (place.longitude.to_radians_of_c(), place.latitude.to_radians_of_c()));
        let v = ((to.0 - from.0) / 2.0).sin();
        if v == 0.0 {
            return self.distance_of_latitudes(other);
        }
        let u = ((to.1 - from.1) / 2.0).sin();
        2.0 * EARTH_RADIUS_M * (u * u + from.1.cos() * to.1.cos() * v * v).sqrt().asin()
    }

    fn distance_of_latitudes(self, other: Self) -> f64 {
        EARTH_RADIUS_M * (other.latitude.to_radians_of_c() - self.latitude.to_radians_of_c()).abs()
    }

    /// Returns the geohash that other programs read. Its last digit is always 0: a score has too few bits for it.
    pub(super) fn geohash(self) -> [u8; 11] {
        let number = Cell::of(self, STEPS_MAX, ALL_LATITUDES).number;
        std::array::from_fn(|at| match at {
            10 => DIGITS[0],
            at => DIGITS[(number >> (47 - 5 * at)) as usize & 31],
        })
    }
}

/// Conversions of angles as Redis computes them, to the last bit.
trait Angle {
    fn to_radians_of_c(self) -> f64;
    fn to_degrees_of_c(self) -> f64;
}

const DEGREE: f64 = std::f64::consts::PI / 180.0;

impl Angle for f64 {
    fn to_radians_of_c(self) -> f64 {
        self * DEGREE
    }

    fn to_degrees_of_c(self) -> f64 {
        self / DEGREE
    }
}

/// Converts a score to a number as x86 converts it for Redis: negative ones wrap around.
fn number_of(score: f64) -> u64 {
    match score {
        score if score < 0.0 => score as i64 as u64,
        score if score < 2f64.powi(64) => score as u64,
        _ => 0,
    }
}

/// Rectangle, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Area {
    longitudes: Span,
    latitudes: Span,
}

/// One of the rectangles into which the earth is divided: two to the power of `steps` in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    number: u64,
    steps: u32,
}

impl Cell {
    fn of(place: Place, steps: u32, latitudes: Span) -> Self {
        let longitude = LONGITUDES.part_of(place.longitude, steps);
        let latitude = latitudes.part_of(place.latitude, steps);
        Self { number: spread(longitude) << 1 | spread(latitude), steps }
    }

    fn area(self) -> Area {
        Area {
            longitudes: LONGITUDES.part(gather(self.number >> 1), self.steps),
            latitudes: LATITUDES.part(gather(self.number), self.steps),
        }
    }

    /// Returns the cell that is this many cells further east and north, around the edges of the earth.
    fn moved(self, east: i64, north: i64) -> Self {
        let mask = u64::MAX >> (64 - 2 * self.steps);
        let add = |bits: u64, own: u64, by: i64| {
            // Filling the bits between with ones carries from one bit of this coordinate to the next.
            let others = mask & !own;
            match by {
                0 => bits & own,
                by if by > 0 => ((bits & own) + (others + 1)) & own & mask,
                _ => ((bits & own | others).wrapping_sub(others + 1)) & own & mask,
            }
        };
        let number = add(self.number, LONGITUDE_BITS, east) | add(self.number, !LONGITUDE_BITS, north);
        Self { number, steps: self.steps }
    }

    /// Returns the scores of the places in this cell.
    pub(super) fn scores(self) -> Range<f64> {
        let shift = 2 * (STEPS_MAX - self.steps);
        (self.number << shift) as f64..((self.number + 1) << shift) as f64
    }
}

/// Moves each bit of a coordinate to the place that it has in a number.
fn spread(coordinate: u32) -> u64 {
    const STEPS: [(u32, u64); 5] = [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ];
    STEPS.iter().fold(u64::from(coordinate), |bits, (shift, mask)| (bits | bits << shift) & mask)
}

/// Inverse of [`spread`]; ignores the bits between.
fn gather(number: u64) -> u32 {
    const STEPS: [(u32, u64); 5] = [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ];
    let bits = number & 0x5555_5555_5555_5555;
    STEPS.iter().fold(bits, |bits, (shift, mask)| (bits | bits >> shift) & mask) as u32
}

/// Shape around a place, in meters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    Circle { radius: f64 },
    Rectangle { width: f64, height: f64 },
}

impl Shape {
    /// Returns the distance in meters of a place within the shape around `center`.
    pub(super) fn distance(self, center: Place, place: Place) -> Option<f64> {
        let is_within = match self {
            Self::Circle { radius } => center.distance(place) <= radius,
            Self::Rectangle { width, height } => {
                let beside = Place { longitude: center.longitude, latitude: place.latitude };
                place.distance_of_latitudes(center) <= height / 2.0 && place.distance(beside) <= width / 2.0
            }
        };
        is_within.then(|| center.distance(place))
    }

    /// Returns the cells that contain the shape around `center`, in the order in which Redis searches them.
    pub(super) fn cells(self, center: Place) -> Vec<Cell> {
        let bounds = self.bounds(center);
        let mut steps = steps_for(self.reach(), center.latitude);
        let mut cell = Cell::of(center, steps, LATITUDES);
        if steps > 1 && !surrounds(cell, bounds) {
            steps -= 1;
            cell = Cell::of(center, steps, LATITUDES);
        }
        let area = cell.area();
        // Neighbors in a direction in which the shape does not leave the cell are not searched.
        let is_needed = |east: i64, north: i64| {
            let is_far_enough = |at: i64, span: Span, bounds: Span| match at {
                0 => true,
                at if at > 0 => span.max <= bounds.max,
                _ => span.min >= bounds.min,
            };
            steps < 2
                || is_far_enough(east, area.longitudes, bounds.longitudes)
                    && is_far_enough(north, area.latitudes, bounds.latitudes)
        };
        const AROUND: [(i64, i64); 8] = [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let mut cells = vec![cell];
        let mut previous = None;
        for (east, north) in AROUND.into_iter().filter(|(east, north)| is_needed(*east, *north)) {
            let next = cell.moved(east, north);
            // Around very large shapes a neighbor in two directions is the same cell.
            if previous != Some(next) {
                cells.push(next);
                previous = Some(next);
            }
        }
        cells
    }

    /// Returns the distance in meters from the center to the farthest point.
    fn reach(self) -> f64 {
        match self {
            Self::Circle { radius } => radius,
            Self::Rectangle { width, height } => ((width / 2.0).powi(2) + (height / 2.0).powi(2)).sqrt(),
        }
    }

    fn bounds(self, center: Place) -> Area {
        let (width, height) = match self {
            Self::Circle { radius } => (radius, radius),
            Self::Rectangle { width, height } => (width / 2.0, height / 2.0),
        };
        let Place { longitude, latitude } = center;
        let up = (height / EARTH_RADIUS_M).to_degrees_of_c();
        // The side that is nearer to a pole spans more degrees.
        let widest = if latitude < 0.0 { latitude - up } else { latitude + up };
        let aside = (width / EARTH_RADIUS_M / widest.to_radians_of_c().cos()).to_degrees_of_c();
        Area {
            longitudes: Span { min: longitude - aside, max: longitude + aside },
            latitudes: Span { min: latitude - up, max: latitude + up },
        }
    }
}

/// Returns `true` if the bounds end within the neighbors of the cell.
fn surrounds(cell: Cell, bounds: Area) -> bool {
    let [north, south, east, west] = [(0, 1), (0, -1), (1, 0), (-1, 0)].map(|(x, y)| cell.moved(x, y).area());
    north.latitudes.max >= bounds.latitudes.max
        && south.latitudes.min <= bounds.latitudes.min
        && east.longitudes.max >= bounds.longitudes.max
        && west.longitudes.min <= bounds.longitudes.min
}

/// Returns the number of steps of cells that are about as large as the reach of a shape.
fn steps_for(mut reach_m: f64, latitude: f64) -> u32 {
    if reach_m == 0.0 {
        return STEPS_MAX;
    }
    let mut steps: i32 = 1;
    while reach_m < MERCATOR_MAX_M {
        reach_m *= 2.0;
        steps += 1;
    }
    steps -= 2;
    // Towards the poles a cell is narrower.
    steps -= i32::from(latitude.abs() > 66.0) + i32::from(latitude.abs() > 80.0);
    steps.clamp(1, STEPS_MAX as i32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PALERMO: Place = Place { longitude: 13.361389, latitude: 38.115556 };
    const CATANIA: Place = Place { longitude: 15.087269, latitude: 37.502669 };

    /// Figures of the manual pages of GEOADD, GEOHASH and GEODIST.
    #[test]
    fn scores_geohashes_and_distances_are_those_of_redis() {
        assert_eq!(PALERMO.score(), 3_479_099_956_230_698.0);
        assert_eq!(CATANIA.score(), 3_479_447_370_796_909.0);
        let stored = [PALERMO, CATANIA].map(|place| Place::of_score(place.score()));
        assert_eq!(stored.map(|place| place.geohash()), [*b"sqc8b49rny0", *b"sqdtr74hyu0"]);
        assert_eq!(format!("{:.4}", stored[0].distance(stored[1])), "166274.1516");
    }

    #[test]
    fn places_outside_of_the_projection_are_none() {
        assert!(Place::new(180.0, -85.05112878).is_some());
        for (longitude, latitude) in [(180.1, 0.0), (0.0, 85.06), (f64::INFINITY, 0.0), (0.0, f64::NEG_INFINITY)] {
            assert_eq!(Place::new(longitude, latitude), None);
        }
    }

    #[test]
    fn a_neighbor_of_a_neighbor_is_the_cell_itself() {
        for steps in 1..=STEPS_MAX {
            let cell = Cell::of(PALERMO, steps, LATITUDES);
            for (east, north) in [(1, 0), (0, 1), (1, 1), (1, -1)] {
                let there = cell.moved(east, north);
                assert_ne!(there, cell);
                assert_eq!(there.moved(-east, -north), cell, "{steps} steps");
            }
        }
        let edge = Cell::of(Place { longitude: 179.99, latitude: 0.0 }, 10, LATITUDES).moved(1, 0);
        assert_eq!(edge.area().longitudes.min, -180.0);
    }

    proptest::proptest! {
        #[test]
        fn coordinates_survive_interleaving(coordinate: u32) {
            proptest::prop_assert_eq!(gather(spread(coordinate)), coordinate);
        }

        /// Below 5,000 km; around larger shapes the cells of Redis may miss places, too.
        #[test]
        fn the_cells_of_a_shape_contain_all_places_in_it(
            x in -179.0..179.0, y in -80.0..80.0, dx in -1.0..1.0, dy in -1.0..1.0, radius in 1.0..100_000.0,
        ) {
            let center = Place { longitude: x, latitude: y };
            let Some(place) = Place::new(x + dx, y + dy) else { return Ok(()) };
            let square = Shape::Rectangle { width: radius, height: radius };
            for shape in [Shape::Circle { radius }, square] {
                let is_covered = shape.cells(center).iter().any(|cell| cell.scores().contains(&place.score()));
                proptest::prop_assert!(is_covered || shape.distance(center, place).is_none());
            }
        }
    }
}
