//! A ring that nobody wrote, or that was torn: it is refused, or read to an end within its bounds.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};

use super::input::Input;
use crate::transcript::ring::FRAME_HEADER;
use crate::transcript::{Batch, Reader, Ring};

/// Whether it is given a right beginning, how much is read at a time, from where on; the ring.
pub fn ring(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (right, max_bytes, seq) = (input.byte() & 1 == 0, input.short(), input.long());
    let memory = if right { with_beginning(input.0) } else { input.0.to_vec() };
    let ring = sealed(&memory).and_then(Ring::open);
    let Ok(ring) = ring else {
        assert!(!right, "its beginning was right");
        return;
    };
    let ring = Arc::new(ring);
    let first = ring.first_seq();
    ring.figures();
    assert!(ring.memory() <= memory.len() as u64);
    for seq in [seq, first, 1, u64::MAX] {
        is_read_to_an_end(Reader::new(Arc::clone(&ring), seq), &ring, max_bytes.into());
    }
}

/// What is read are chunks without holes, none larger than the ring; and there is an end of them.
fn is_read_to_an_end(mut reader: Reader, ring: &Ring, max_bytes: usize) {
    let most = ring.capacity() / FRAME_HEADER;
    let (mut seq, mut read) = (reader.next_seq(), 0);
    loop {
        let Batch { gap, chunks } = reader.read(max_bytes);
        if let Some(gap) = gap {
            assert!(gap.from_seq == seq && gap.to_seq >= seq, "{gap:?} from {seq} on");
            seq = gap.to_seq + 1;
        }
        for chunk in &chunks {
            assert_eq!(chunk.seq, seq);
            assert!(chunk.data.len() as u64 <= ring.capacity());
            seq = reader.next_seq().min(seq.saturating_add(1));
        }
        read += chunks.len() as u64;
        assert!(read <= most, "{read} chunks in {} bytes", ring.capacity());
        if chunks.is_empty() {
            return;
        }
    }
}

/// The same bytes with the magic, and the capacity that they have room for.
fn with_beginning(bytes: &[u8]) -> Vec<u8> {
    let mut memory = bytes.to_vec();
    Ring::set_beginning(&mut memory);
    memory
}

/// A descriptor of these bytes that cannot be cut short.
fn sealed(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(c"fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes.len() as u64)?;
    assert_eq!(rustix::io::pwrite(&fd, bytes, 0)?, bytes.len());
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    Ok(fd)
}
