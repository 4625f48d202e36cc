//! The byte streams under a connection: the socket, which sends files in place of their mappings, and a layer that tells
//! the [`Connection`] what moves.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BufMut;
use rustix::net::Shutdown;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

use super::connection::Connection;
use super::sendfile::{self, Regions};

/// The most that is read and thrown away of a client that goes on sending after the end.
const MAX_LINGER_BYTES: usize = 64 * 1024 * 1024;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    fn try_read(&self, buffer: &mut impl BufMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(buffer),
            Self::Unix(stream) => stream.try_read_buf(buffer),
        }
    }

    fn try_write(&self, write: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_io(Interest::WRITABLE, write),
            Self::Unix(stream) => stream.try_io(Interest::WRITABLE, write),
        }
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    fn end_writing(&self) -> io::Result<()> {
        match rustix::net::shutdown(self, Shutdown::Write) {
            Err(rustix::io::Errno::NOTCONN) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Ends the connection so that the client sees everything and then an end, never a reset: closing a socket that
    /// still has unread input makes the kernel send a reset, which overtakes what the client has not read yet.
    pub(crate) async fn linger(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut left_bytes = MAX_LINGER_BYTES;
        let mut buffer = Vec::with_capacity(16 * 1024);
        if self.end_writing().is_err() {
            return;
        }
        while let Ok(Ok(())) = timeout_at(deadline, self.readable()).await {
            buffer.clear();
            match self.try_read(&mut buffer) {
                Ok(length) if length > 0 && length < left_bytes => left_bytes -= length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A socket as a stream of bytes. It closes with the last holder of the socket, not with this.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: Arc<Socket>,
    regions: Arc<Regions>,
}

impl Wire {
    pub(crate) fn new(socket: Arc<Socket>, regions: Option<&Arc<Regions>>) -> Self {
        Self {
            socket,
            regions: regions.cloned().unwrap_or_default(),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            match self.socket.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(|_| ())),
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let (socket, regions) = (&self.socket, &self.regions);
        loop {
            ready!(socket.poll_write_ready(cx))?;
            match socket.try_write(|| sendfile::write(socket, slices, regions)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.end_writing())
    }
}

/// A stream whose movements the connection hears of.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    stream: T,
    connection: Arc<Connection>,
}

impl<T> Watched<T> {
    pub(crate) fn new(stream: T, connection: Arc<Connection>) -> Self {
        Self { stream, connection }
    }

    fn report(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(Ok(length)) => self.connection.wrote(*length),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.stalled(),
        }
        result
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.connection.read();
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.report(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.report(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        match &result {
            Poll::Ready(Ok(())) => self.connection.flushed(),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.stalled(),
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
