//! The seeds of the targets: real messages, rings, files and output to begin with.
//!
//! `cargo test --lib write_the_seeds -- --ignored` writes them to `fuzz/seeds`. What a fuzzer has
//! broken lies there too, as `broke-…` with what it broke, and is run by the same test.

mod made;

use std::fs;
use std::path::PathBuf;

use super::TARGETS;

/// Most bytes of all seeds: they are in every checkout.
const MOST: usize = 200 << 10;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds")
}

/// The files of a target.
fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(directory().join(target)).unwrap_or_else(|error| {
        panic!("{target} has no seeds: {error}");
    });
    let files = files.map(|file| file.unwrap().path());
    files.map(|file| (file.clone(), fs::read(file).unwrap())).collect()
}

#[test]
fn every_target_holds_for_all_of_its_seeds() {
    for (target, entry) in TARGETS {
        let seeds = seeds(target);
        assert!(!seeds.is_empty(), "{target} has no seeds");
        for (file, bytes) in seeds {
            // Tells which it is when it panics.
            println!("{}", file.display());
            entry(&bytes);
        }
    }
}

#[test]
fn every_target_can_be_run() {
    let manifest = fs::read_to_string(directory().with_file_name("Cargo.toml")).unwrap();
    for (target, _) in TARGETS {
        let path = format!("fuzz_targets/{target}.rs");
        assert!(manifest.contains(&path), "{path} is missing in fuzz/Cargo.toml");
        let source = fs::read_to_string(directory().with_file_name(&path)).unwrap();
        assert!(source.contains(&format!("fuzzing::{target}")), "{path} feeds another");
    }
}

#[test]
fn the_seeds_are_few() {
    let sizes = TARGETS.iter().flat_map(|(target, _)| seeds(target));
    assert!(sizes.map(|(_, bytes)| bytes.len()).sum::<usize>() < MOST);
}

#[test]
#[ignore = "writes files"]
fn write_the_seeds() {
    for (target, name, bytes) in made::seeds() {
        let directory = directory().join(target);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), bytes).unwrap();
    }
}
