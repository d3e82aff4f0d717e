//! One end of a plain loop of the steps that an exchange consists of: read from a file, QUIC with packets of the same size,
//! BLAKE3 of each grain, write, one fdatasync for each chunk. As many bytes, in as many chunks, both ways at once.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::PrivatePkcs8KeyDer;
use shardd_certificates::{
    CA_CERTIFICATE, NODE_CERTIFICATE, NODE_KEY, certificate_name, read_certificate, read_key,
};

use super::command;
use super::data::{self, Set};

/// As the transport of nodes has it.
const LARGEST_DATAGRAM: u16 = 6500;
const SOCKET_BUFFER: usize = 4 << 20;
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// The process's part: its address, the other's, `ready`, `go`, and then bytes received and seconds of processors.
pub(super) async fn play(home: &Path, number: usize) -> Result<()> {
    let endpoint = endpoint(&home.join(format!("tls{number}")))?;
    println!("{}", endpoint.local_addr()?);
    let other: SocketAddr = command()?.parse()?;
    let connecting = endpoint.connect(other, &certificate_name(&data::name(1 - number)))?;
    let accepting = async { anyhow::Ok(endpoint.accept().await.context("the endpoint lives")?.await?) };
    let (out, into) = tokio::try_join!(async { anyhow::Ok(connecting.await?) }, accepting)?;

    let Set { grain_bytes: grain, chunk_grains: each, chunks } = Set::read(home)?;
    let chunks = u64::from(chunks);
    let source = home.join(format!("plain{number}"));
    let mut noise = blake3::Hasher::new().finalize_xof();
    let file = File::create(&source)?;
    let mut bytes = vec![0; grain];
    for index in 0..each * chunks {
        noise.fill(&mut bytes);
        file.write_all_at(&bytes, index * grain as u64)?;
    }
    file.sync_all()?;
    println!("ready");

    command()?;
    let cpu_before = data::cpu_seconds();
    let sending = tokio::spawn(send(out.clone(), File::open(&source)?, grain, each * chunks));
    let target = File::create(home.join(format!("taken{number}")))?;
    // Dropped, the connection would be closed before the last word is heard.
    let receiving = tokio::spawn(receive(into.clone(), target, grain, each, chunks));
    sending.await??;
    let received = receiving.await??;
    println!("{received} {}", data::cpu_seconds() - cpu_before);

    command()?;
    endpoint.close(0_u32.into(), b"done");
    Ok(())
}

async fn send(connection: quinn::Connection, source: File, grain: usize, grains: u64) -> Result<()> {
    let (mut send, mut receive) = connection.open_bi().await?;
    for index in 0..grains {
        let mut bytes = vec![0; grain];
        // From memory: it was just written.
        source.read_exact_at(&mut bytes, index * grain as u64)?;
        send.write_chunk(bytes.into()).await?;
    }
    send.finish()?;
    // The other side has it all on disk.
    ensure!(receive.read_to_end(1).await? == [1], "another answer");
    Ok(())
}

async fn receive(
    connection: quinn::Connection,
    target: File,
    grain: usize,
    each: u64,
    chunks: u64,
) -> Result<u64> {
    let (mut send, mut receive) = connection.accept_bi().await?;
    let mut digests = Vec::new();
    for chunk in 0..chunks {
        let mut grains = Vec::with_capacity(each as usize);
        for _ in 0..each {
            let mut bytes = vec![0; grain];
            receive.read_exact(&mut bytes).await?;
            grains.push(bytes);
        }
        let (first, digests) = (chunk * each, &mut digests);
        tokio::task::block_in_place(|| {
            for (index, bytes) in (first..).zip(&grains) {
                digests.push(blake3::hash(bytes));
                target.write_all_at(bytes, index * grain as u64)?;
            }
            target.sync_data()
        })?;
    }
    ensure!(digests.len() as u64 == each * chunks, "not all came");
    send.write_all(&[1]).await?;
    send.finish()?;
    Ok(each * chunks * grain as u64)
}

fn endpoint(tls: &Path) -> Result<quinn::Endpoint> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = read_certificate(&tls.join(NODE_CERTIFICATE))?;
    let key = PrivatePkcs8KeyDer::from(read_key(&tls.join(NODE_KEY))?.serialize_der());
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(read_certificate(&tls.join(CA_CERTIFICATE))?)?;
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();

    let mut discovery = quinn::MtuDiscoveryConfig::default();
    discovery.upper_bound(LARGEST_DATAGRAM);
    let mut transport = quinn::TransportConfig::default();
    transport
        .mtu_discovery_config(Some(discovery))
        .keep_alive_interval(Some(Duration::from_secs(1)))
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(CONNECTION_WINDOW.into());
    let transport = Arc::new(transport);
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server)?));
    server.transport_config(Arc::clone(&transport));
    let mut client = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(client)?));
    client.transport_config(transport);

    let mut settings = quinn::EndpointConfig::default();
    settings.max_udp_payload_size(LARGEST_DATAGRAM)?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let buffers = socket2::SockRef::from(&socket);
    buffers.set_recv_buffer_size(SOCKET_BUFFER)?;
    buffers.set_send_buffer_size(SOCKET_BUFFER)?;
    let mut endpoint = quinn::Endpoint::new(settings, Some(server), socket, Arc::new(quinn::TokioRuntime))?;
    endpoint.set_default_client_config(client);
    Ok(endpoint)
}
