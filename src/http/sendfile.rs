//! Cached bytes from the page cache to a socket without passing through this process.
//!
//! hyper takes bodies as `Bytes`. A stretch of a file is therefore mapped, but never touched: its `Bytes` only stand for
//! the stretch while hyper queues them. The connection's writer finds them again by their address in the connection's
//! [`Regions`] and calls `sendfile(2)` in their place. The mapping is real, so code that reads the bytes after all gets
//! the right ones; the writer itself never does, so a file that shrinks is an error here and no signal.

#![expect(
    unsafe_code,
    reason = "a mapping is the only way to give hyper `Bytes` that cost no copy; measured at half the CPU of reading"
)]

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};

/// What is read and written in one go where the file system knows no `sendfile`.
const COPY_BYTES: usize = 64 * 1024;

/// The mapped stretches that are on their way through one connection.
#[derive(Debug, Default)]
pub(crate) struct Regions(Mutex<Vec<Region>>);

#[derive(Debug)]
struct Region {
    addresses: Range<usize>,
    file: Arc<File>,
    offset: u64,
}

/// Where the bytes of a slice really are.
#[derive(Debug)]
struct Source {
    file: Arc<File>,
    offset: u64,
}

/// A mapping that is listed in its connection's regions for as long as any of its bytes are held.
struct Mapped {
    mapping: Mmap,
    regions: Arc<Regions>,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.mapping
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Unlisted before it is unmapped: another mapping may get the same address.
        let begin = self.mapping.as_ptr().addr();
        self.regions
            .0
            .lock()
            .retain(|region| region.addresses.start != begin);
    }
}

impl Regions {
    /// Stands for bytes `range` of `file`; the range is not empty.
    ///
    /// # Errors
    /// When the range cannot be mapped; the caller reads it instead.
    pub(crate) fn map(self: &Arc<Self>, file: &Arc<File>, range: &Range<u64>) -> io::Result<Bytes> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(io::Error::other)?;
        let mut options = MmapOptions::new();
        options.offset(range.start).len(length);
        // SAFETY: undefined behaviour needs someone to change or shrink the file while the slice is read. Files in the
        // store are only renamed and unlinked, a spool only grows, and the writer sends the file instead of reading the slice.
        let mapping = unsafe { options.map(file.as_ref())? };
        let begin = mapping.as_ptr().addr();
        self.0.lock().push(Region {
            addresses: begin..begin + length,
            file: file.clone(),
            offset: range.start,
        });
        Ok(Bytes::from_owner(Mapped {
            mapping,
            regions: self.clone(),
        }))
    }

    fn find(&self, slice: &[u8]) -> Option<Source> {
        let begin = slice.as_ptr().addr();
        let regions = self.0.lock();
        let region = regions.iter().find(|region| region.addresses.contains(&begin))?;
        Some(Source {
            file: region.file.clone(),
            offset: region.offset + (begin - region.addresses.start) as u64,
        })
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Writes what fits of `slices` to a non-blocking socket: ordinary ones as they are, mapped ones from their files. What
/// stands before a mapped slice (an answer's head) leaves in one segment with it.
///
/// # Errors
/// The socket's errors, and [`io::ErrorKind::UnexpectedEof`] when a file is shorter than its mapping.
pub(crate) fn write(socket: impl AsFd, slices: &[IoSlice<'_>], regions: &Regions) -> io::Result<usize> {
    if regions.is_empty() {
        return send(&socket, slices, SendFlags::NOSIGNAL);
    }
    let mapped = slices
        .iter()
        .enumerate()
        .filter(|(_, slice)| !slice.is_empty())
        .find_map(|(index, slice)| Some((index, slice, regions.find(slice)?)));
    let Some((index, slice, source)) = mapped else {
        return send(&socket, slices, SendFlags::NOSIGNAL);
    };
    let before = slices.get(..index).unwrap_or_default();
    let before_length: usize = before.iter().map(|slice| slice.len()).sum();
    if before_length == 0 {
        return source.send(&socket, slice.len());
    }
    let sent = send(&socket, before, SendFlags::NOSIGNAL | SendFlags::MORE)?;
    if sent < before_length {
        return Ok(sent);
    }
    // An error shows again on the next call; what was sent must be told now.
    Ok(sent + source.send(&socket, slice.len()).unwrap_or(0))
}

fn send(socket: impl AsFd, slices: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
    let mut nothing = SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(socket, slices, &mut nothing, flags)?)
}

impl Source {
    fn send(&self, socket: impl AsFd, length: usize) -> io::Result<usize> {
        let mut offset = self.offset;
        let sent = match rustix::fs::sendfile(&socket, &self.file, Some(&mut offset), length) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.copy(&socket, length)?,
            result => result?,
        };
        if sent == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a cached file is shorter than it was",
            ));
        }
        Ok(sent)
    }

    fn copy(&self, socket: impl AsFd, length: usize) -> io::Result<usize> {
        let bytes = read_at(&self.file, self.offset, length.min(COPY_BYTES))?;
        if bytes.is_empty() {
            return Ok(0);
        }
        send(socket, &[IoSlice::new(&bytes)], SendFlags::NOSIGNAL)
    }
}

/// Reads up to `length` bytes at `offset`; fewer only at the end of the file.
///
/// # Errors
/// The file's.
pub(crate) fn read_at(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut buffer = Vec::with_capacity(length);
    while buffer.len() < length {
        let position = offset + buffer.len() as u64;
        match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut buffer), position) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    buffer.truncate(length);
    Ok(Bytes::from(buffer))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn file_of(bytes: &[u8]) -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(file)
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|i| u8::try_from(i % 251).unwrap()).collect()
    }

    #[test]
    fn head_and_file_leave_in_one_call() {
        let bytes = pattern(20_000);
        let regions = Arc::new(Regions::default());
        let body = regions.map(&file_of(&bytes), &(5000..15_000)).unwrap();
        let (here, mut there) = UnixStream::pair().unwrap();
        let slices = [IoSlice::new(b"head "), IoSlice::new(b""), IoSlice::new(&body)];
        assert_eq!(write(&here, &slices, &regions).unwrap(), 10_005);
        drop(here);
        let mut received = Vec::new();
        there.read_to_end(&mut received).unwrap();
        assert_eq!(received, [b"head ", &bytes[5000..15_000]].concat());
    }

    #[test]
    fn a_part_of_a_mapping_is_found_at_its_own_offset() {
        let bytes = pattern(20_000);
        let regions = Arc::new(Regions::default());
        let mut body = regions.map(&file_of(&bytes), &(5000..15_000)).unwrap();
        let part = body.split_off(4097);
        let (here, mut there) = UnixStream::pair().unwrap();
        write(&here, &[IoSlice::new(&part)], &regions).unwrap();
        drop(here);
        let mut received = Vec::new();
        there.read_to_end(&mut received).unwrap();
        assert_eq!(received, &bytes[9097..15_000]);
    }

    #[test]
    fn regions_are_forgotten_with_their_last_bytes() {
        let regions = Arc::new(Regions::default());
        let body = regions.map(&file_of(&pattern(10)), &(0..10)).unwrap();
        let part = body.slice(2..4);
        drop(body);
        assert!(!regions.is_empty());
        drop(part);
        assert!(regions.is_empty());
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let file = file_of(&pattern(10_000));
        let regions = Arc::new(Regions::default());
        let body = regions.map(&file, &(0..10_000)).unwrap();
        file.set_len(0).unwrap();
        let (here, _there) = UnixStream::pair().unwrap();
        let error = write(&here, &[IoSlice::new(&body)], &regions).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_cannot_be_sent_is_copied() {
        let bytes = pattern(1000);
        let source = Source {
            file: file_of(&bytes),
            offset: 10,
        };
        let (here, mut there) = UnixStream::pair().unwrap();
        assert_eq!(source.copy(&here, 900).unwrap(), 900);
        drop(here);
        let mut received = Vec::new();
        there.read_to_end(&mut received).unwrap();
        assert_eq!(received, &bytes[10..910]);
    }

    #[test]
    fn reading_stops_at_the_end_of_the_file() {
        let file = file_of(b"0123456789");
        assert_eq!(read_at(&file, 8, 100).unwrap(), "89");
        assert_eq!(read_at(&file, 2, 3).unwrap(), "234");
    }
}
