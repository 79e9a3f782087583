//! Random numbers of scripts: those of Redis, in the same order.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use super::state::{Given, function, integer, one};

/// State of Redis's generator of random numbers (`src/rand.c`) on startup.
const RANDOM_FIRST: u64 = 0x1234_abcd_330e;

/// Adds the functions `random` and `randomseed` to those of the host.
pub(super) fn add(lua: &Lua, host: &Table) -> mlua::Result<()> {
    let random = Rc::new(Cell::new(RANDOM_FIRST));
    let seeded = random.clone();
    host.raw_set("random", function(lua, move |_, args| Ok(next_random(&random, args)))?)?;
    let seed = function(lua, move |_, args| {
        Ok(integer(args, 0, "randomseed").map(|seed| {
            seeded.set((seed as u64 & 0xffff_ffff) << 16 | 0x330e);
            MultiValue::new()
        }))
    })?;
    host.raw_set("randomseed", seed)?;
    Ok(())
}

/// Returns the next random number, as `redis_math_random` of Redis does.
fn next_random(state: &Cell<u64>, args: &MultiValue) -> Given {
    const MAX: f64 = i32::MAX as f64;
    state.set((state.get().wrapping_mul(0x5_deec_e66d).wrapping_add(11)) & 0xffff_ffff_ffff);
    let part = ((state.get() >> 17) % i32::MAX as u64) as f64 / MAX;
    let number = match args.len() {
        0 => part,
        1 | 2 => {
            let (low, high) = if args.len() == 1 {
                (1, integer(args, 0, "random")?)
            } else {
                (integer(args, 0, "random")?, integer(args, 1, "random")?)
            };
            if low > high {
                return Err(format!("bad argument #{} to 'random' (interval is empty)", args.len()));
            }
            // The distance may be too large for an integer.
            (part * (high as f64 - low as f64 + 1.0)).floor() + low as f64
        }
        _ => return Err("wrong number of arguments".to_owned()),
    };
    one(Value::Number(number))
}
