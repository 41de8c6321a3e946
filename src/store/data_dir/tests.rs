//! What is removed, and what is not.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, mknodat};
use tempfile::TempDir;

use super::*;
use crate::store::StateDir;

const KEY: FileKey = FileKey { birth: 7, number: 1 };

fn transcripts() -> (TempDir, DataDir) {
    let place = tempfile::tempdir().unwrap();
    StateDir::prepare(place.path(), &[]).unwrap();
    let directory = DataDir::new(place.path(), DataKind::Transcripts);
    directory.create().unwrap();
    (place, directory)
}

/// A directory of a version that wrote no marker.
fn earlier() -> (TempDir, DataDir) {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("keeper.lock"), "4711      \n").unwrap();
    StateDir::prepare(place.path(), &[]).unwrap();
    let directory = DataDir::new(place.path(), DataKind::Transcripts);
    directory.create().unwrap();
    (place, directory)
}

fn text(file: File) -> String {
    let mut text = String::new();
    { file }.read_to_string(&mut text).unwrap();
    text
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[test]
fn sweep_removes_own_files_and_nothing_else() {
    let (_place, directory) = transcripts();
    let foreign = ["1.1", "notes", "procyard-7.1.transcript.bak", "procyard-07.1.transcript"];
    let others = ["procyard-x.1.transcript", "procyard-7.1.output", "procyard-3.1.transcript.lost"];
    let kept = directory.path(FileKey { birth: 9, number: 2 });
    for name in foreign.iter().chain(&others) {
        fs::write(directory.path.join(name), "").unwrap();
    }
    fs::write(&kept, "").unwrap();
    fs::write(directory.path(KEY), "").unwrap();
    drop(directory.make_temporary(FileKey { birth: 9, number: 2 }).unwrap());
    directory.sweep(|key| key.birth == 9, |_| Inner::Nothing);
    assert!(foreign.iter().chain(&others).all(|name| directory.path.join(name).exists()));
    assert!(kept.exists() && !directory.path(KEY).exists());
    assert_eq!(fs::read_dir(&directory.path).unwrap().count(), 8);
}

#[test]
fn linked_directory_is_neither_read_nor_swept() {
    let (_place, directory) = transcripts();
    let other = tempfile::tempdir().unwrap();
    let file = other.path().join(directory.name(KEY));
    fs::write(&file, "mine").unwrap();
    fs::remove_dir(&directory.path).unwrap();
    symlink(other.path(), &directory.path).unwrap();
    directory.sweep(|_| false, |_| Inner::Nothing);
    directory.remove(KEY, Inner::Nothing);
    assert!(directory.read(KEY).is_err() && directory.make_temporary(KEY).is_err());
    assert!(file.exists());
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
}

#[test]
fn directory_with_foreign_content_is_kept() {
    let (_place, directory) = transcripts();
    fs::create_dir(directory.path(KEY)).unwrap();
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("mine"), "mine").unwrap();
    symlink(other.path(), directory.path(KEY).join("link")).unwrap();
    for inner in [Inner::Nothing, Inner::OnlyFile, Inner::Named("mine")] {
        directory.sweep(|_| false, |_| inner);
        assert!(directory.path(KEY).join("link").exists());
    }
    directory.remove(KEY, Inner::Named("link"));
    assert!(!directory.path(KEY).exists() && other.path().join("mine").exists());
}

#[test]
fn only_regular_files_are_opened() {
    let (_place, directory) = transcripts();
    let path = directory.path(KEY);
    let makes: [&dyn Fn(); 3] = [&|| fifo(&path), &|| fs::create_dir(&path).unwrap(), &|| {
        symlink("/etc/hostname", &path).unwrap()
    }];
    for make in makes {
        make();
        assert!(directory.contains(KEY));
        assert!(directory.read(KEY).unwrap().is_none());
        assert!(directory.append(KEY).is_err());
        directory.remove(KEY, Inner::Nothing);
        assert!(!directory.contains(KEY));
    }
}

#[test]
fn temporary_file_replaces_what_has_its_name() {
    let (_place, directory) = transcripts();
    fifo(&directory.path.join(directory.name(KEY) + TEMPORARY));
    fifo(&directory.path(KEY));
    directory.make_temporary(KEY).unwrap().write_all(b"new").unwrap();
    directory.publish(KEY).unwrap();
    assert_eq!(text(directory.read(KEY).unwrap().unwrap()), "new");
}

#[test]
fn files_of_an_earlier_version_are_read_and_never_swept() {
    let (_place, directory) = earlier();
    for name in ["7.1", "8.1"] {
        fs::write(directory.path.join(name), "old").unwrap();
    }
    directory.sweep(|_| false, |_| Inner::Nothing);
    assert_eq!(text(directory.read(KEY).unwrap().unwrap()), "old");
    directory.make_temporary(KEY).unwrap();
    directory.publish(KEY).unwrap();
    assert!(!directory.path.join("7.1").exists() && directory.path.join("8.1").exists());
}

#[test]
fn earlier_names_mean_nothing_in_a_new_directory() {
    let (_place, directory) = transcripts();
    fs::write(directory.path.join("7.1"), "mine").unwrap();
    assert!(!directory.contains(KEY) && directory.read(KEY).is_err());
    directory.remove(KEY, Inner::Nothing);
    assert!(directory.path.join("7.1").exists());
}

#[test]
fn oldest_files_of_lost_records_are_removed() {
    let (_place, directory) = transcripts();
    let keys = [1, 2, 3, 4].map(|number| FileKey { birth: 7, number });
    let lost = |key| directory.path.join(directory.name(key) + LOST);
    for (key, age) in keys.into_iter().zip([30, 10, 20, 0]) {
        fs::write(lost(key), "12345").unwrap();
        let modified = SystemTime::now() - Duration::from_secs(age);
        File::options().write(true).open(lost(key)).unwrap().set_modified(modified).unwrap();
    }
    fs::write(directory.path(KEY), "record").unwrap();
    let kept = || keys.map(|key| lost(key).exists());
    directory.trim_lost(3, 1000);
    assert_eq!(kept(), [false, true, true, true]);
    directory.trim_lost(3, 12);
    assert_eq!(kept(), [false, true, false, true]);
    directory.trim_lost(0, 0);
    assert_eq!(kept(), [false, false, false, true]);
    assert!(directory.path(KEY).exists());
}
