//! Damage to the files of a node that does not run.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::network::Outcome;
use crate::plan::Random;

/// Kinds of files, by the ends of their names.
const KINDS: [&str; 4] = [".journal", ".log", "checkpoint", ".index"];
/// Bytes at the end of what is written in a file of the journal that stay as they are. A wrong bit in the last block
/// looks like a write that was cut short, and no program can tell them apart.
const LAST_BLOCKS: u64 = 64 * 1024;
const PAGE: usize = 4096;

/// Flips one bit in a file of a directory. Returns where.
pub fn flip_bit(data: &Path, random: &mut Random) -> Outcome<String> {
    let failed = |error: std::io::Error| format!("{}: {error}", data.display());
    let mut files = Vec::new();
    list(data, &mut files).map_err(failed)?;
    files.sort();
    // A kind first, as there are many segments. Files that are empty or short of a block have nothing to flip.
    for _ in 0..64 {
        let kind = random.one_of(&KINDS);
        let of_kind: Vec<&PathBuf> = files.iter().filter(|file| file.to_string_lossy().ends_with(kind)).collect();
        if of_kind.is_empty() {
            continue;
        }
        let path = random.one_of(&of_kind);
        let end = written(path, kind).map_err(failed)?;
        if end > 0 {
            let (at, bit) = (random.below(end), random.below(8));
            flip(path, at, bit as u32).map_err(failed)?;
            let name = path.strip_prefix(data).unwrap_or(path).display();
            return Ok(format!("bit {bit} of byte {at} of {name}"));
        }
    }
    Err(format!("{} has no file with contents", data.display()))
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the length of what is written in a file: files of the journal end with zeros.
fn written(path: &Path, kind: &str) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if kind != ".journal" {
        return Ok(length);
    }
    let (mut page, mut at, mut end) = ([0; PAGE], 0, 0);
    loop {
        let read = file.read(&mut page)?;
        if read == 0 {
            return Ok(u64::saturating_sub(end, LAST_BLOCKS));
        }
        at += read as u64;
        if page[..read].iter().any(|byte| *byte != 0) {
            end = at;
        }
    }
}

fn flip(path: &Path, at: u64, bit: u32) -> std::io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut byte)?;
    byte[0] ^= 1 << bit;
    file.seek(SeekFrom::Start(at))?;
    file.write_all(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_is_flipped() {
        let folder = std::env::temp_dir().join(format!("thalweg-chaos-damage-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("journal")).expect("a folder");
        let path = folder.join("journal").join("000001.journal");
        let mut bytes = vec![7; 100_000];
        bytes.resize(300_000, 0);
        std::fs::write(&path, &bytes).expect("written");
        let mut random = Random::new(3);
        for _ in 0..50 {
            flip_bit(&folder, &mut random).expect("flipped");
            let changed = std::fs::read(&path).expect("read");
            let different: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != changed[*at]).collect();
            assert!(different.len() == 1 && different[0] < 100_000 - 60_000, "{different:?}");
            assert_eq!((bytes[different[0]] ^ changed[different[0]]).count_ones(), 1);
            std::fs::write(&path, &bytes).expect("written");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
