//! The parts of a node: its cache, its exchange with another node, and its HTTP API.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::sync_channel;
use std::thread;

use anyhow::{Context, Result, ensure};
use shardd::config::Settings;
use shardd::serve::Signals;
use shardd_benches::exchange::data::Set;
use shardd_benches::exchange::{Part, pair};
use shardd_benches::noise;
use shardd_benches::pairs::{Pair, Pairs};
use shardd_engine::cache::{Cache, CacheConfig, Class};
use shardfmt::{ByteSize, GrainKey, ShardId};
use tempfile::TempDir;

const GRAIN: usize = 16 << 10;
const GRAINS: u32 = 2048;

fn key(index: u32) -> GrainKey {
    GrainKey { shard: ShardId::of(&(index / 256).to_le_bytes()), rows: 16, index: index % 256 }
}

fn filled(dir: &TempDir, grains: u32, bytes: &[u8]) -> Result<Cache> {
    let cache = open(dir)?;
    for index in 0..grains {
        cache.put(key(index), &Class::until("bench", index % 8), bytes)?;
    }
    Ok(cache)
}

fn open(dir: &TempDir) -> Result<Cache> {
    Ok(Cache::open(dir.path(), CacheConfig { limit: ByteSize(1 << 30) })?)
}

/// A different grain each time.
fn following(index: &mut u32) -> u32 {
    *index = (*index + 997) % GRAINS;
    *index
}

/// A grain of 16 KiB that the cache has, beside reading as many bytes from a file.
pub(crate) fn cache_hit(pairs: &Pairs) -> Result<Pair> {
    let dir = tempfile::tempdir()?;
    let bytes = noise(GRAIN);
    let cache = filled(&dir, GRAINS, &bytes)?;
    let path = dir.path().join("plain");
    fs::write(&path, bytes.repeat(GRAINS as usize))?;
    let (file, mut own, mut other) = (File::open(&path)?, 0, 0);
    let found = || {
        let location = cache.get(&key(following(&mut own))).expect("it was put");
        cache.read(&location).expect("our grain")
    };
    Ok(pairs.measure(found, || {
        let mut bytes = vec![0; GRAIN];
        let at = u64::from(following(&mut other)) * GRAIN as u64;
        file.read_exact_at(&mut bytes, at).expect("our file");
        bytes
    }))
}

/// A grain that the cache does not have, beside a key that a hash map does not have.
pub(crate) fn cache_miss(pairs: &Pairs) -> Result<Pair> {
    let dir = tempfile::tempdir()?;
    let cache = filled(&dir, GRAINS, &noise(64))?;
    let map: HashMap<GrainKey, u64> = (0..GRAINS).map(|index| (key(index), index.into())).collect();
    let missing: Vec<GrainKey> = (GRAINS..2 * GRAINS).map(key).collect();
    let (mut own, mut other) = (missing.iter().cycle(), missing.iter().cycle());
    Ok(pairs.measure(
        || cache.get(own.next().expect("endless")).is_none(),
        || !map.contains_key(other.next().expect("endless")),
    ))
}

/// Opening a cache of 50,000 grains after an orderly stop, and stopping it again, beside reading and writing its index.
pub(crate) fn cache_open(pairs: &Pairs) -> Result<Pair> {
    const GRAINS: u32 = 50_000;
    let dir = tempfile::tempdir()?;
    filled(&dir, GRAINS, &[7; 8])?.close()?;
    let (index, copy) = (fs::read(dir.path().join("index"))?, dir.path().with_extension("copy"));
    fs::write(&copy, index)?;
    let opened = || {
        let cache = open(&dir).expect("our cache");
        assert_eq!(cache.len(), GRAINS as usize, "all grains are there");
        cache.close().expect("space");
    };
    let measured = pairs.measure(opened, || {
        let index = fs::read(&copy).expect("our file");
        fs::write(&copy, index).expect("space");
    });
    fs::remove_file(copy)?;
    Ok(measured)
}

/// Seconds for a byte of an exchange of 32 MiB of samples of 3 KiB between two processes, beside a plain loop of the same steps.
pub(crate) fn exchange(pairs: &Pairs) -> Result<Pair> {
    const BYTES: u64 = 32 << 20;
    let own = std::env::current_exe()?;
    let mut best = Pair { ours: f64::INFINITY, yardstick: f64::INFINITY };
    for _ in 0..2 {
        let home = tempfile::tempdir()?;
        Set::make(home.path(), 3 << 10, BYTES)?;
        let plain = pair(&own, home.path(), Part::Plain)?;
        best.yardstick = best.yardstick.min(plain.seconds / plain.bytes as f64);
        let nodes = pair(&own, home.path(), Part::Node)?;
        best.ours = best.ours.min(nodes.seconds / nodes.bytes as f64);
    }
    Ok(pairs.slowed(best))
}

/// The listing of data sets by a node, beside a socket that answers with the same bytes; one connection for each.
pub(crate) fn http_listing(pairs: &Pairs) -> Result<Pair> {
    let dir = tempfile::tempdir()?;
    let (tell, ready) = sync_channel(1);
    let signals = Signals::default();
    let settings = Settings {
        data: Some(dir.path().join("node")),
        http: Some("127.0.0.1:0".parse()?),
        quic: Some("127.0.0.1:0".parse()?),
        ..Settings::default()
    };
    let (config, of_node) = (settings.or(Settings::defaults()).resolve()?, signals.clone());
    let node = thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let ready = Box::new(move |ready: &shardd::serve::Ready| _ = tell.send(ready.http.address));
        runtime.block_on(shardd::serve::serve(config, of_node, ready))?;
        Ok(())
    });
    let Ok(address) = ready.recv() else {
        node.join().map_err(|_| anyhow::anyhow!("the node panicked"))??;
        anyhow::bail!("the node ended before it was ready");
    };
    let mut ours = Connection::open(address)?;
    let listing = ours.get()?;
    let mut yardstick = Connection::open(plain_server(listing.clone())?)?;
    ensure!(yardstick.get()? == listing, "both answer with the same bytes");
    let measured = pairs.measure(|| ours.get().expect("an answer"), || yardstick.get().expect("an answer"));
    signals.stop.cancel();
    node.join().map_err(|_| anyhow::anyhow!("the node panicked"))??;
    Ok(measured)
}

/// A connection over which one request follows the other.
struct Connection {
    stream: BufReader<TcpStream>,
    request: String,
}

impl Connection {
    fn open(address: std::net::SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let request = format!("GET /v1/datasets HTTP/1.1\r\nHost: {address}\r\n\r\n");
        Ok(Connection { stream: BufReader::new(stream), request })
    }

    /// The body of the answer.
    fn get(&mut self) -> Result<Vec<u8>> {
        self.stream.get_mut().write_all(self.request.as_bytes())?;
        let (mut line, mut length, mut is_first) = (String::new(), 0, true);
        loop {
            line.clear();
            ensure!(self.stream.read_line(&mut line)? > 0, "the connection ended");
            ensure!(!is_first || line.contains(" 200 "), "the answer is {line}");
            is_first = false;
            if line.trim_end().is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().context("a number of bytes")?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }
}

/// Answers every request of one connection with this body, on a thread that ends with the connection.
fn plain_server(body: Vec<u8>) -> Result<std::net::SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || -> Result<()> {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let answer = [head.into_bytes(), body].concat();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        while stream.read_line(&mut line)? > 0 {
            if line.trim_end().is_empty() {
                stream.get_mut().write_all(&answer)?;
            }
            line.clear();
        }
        Ok(())
    });
    Ok(address)
}
