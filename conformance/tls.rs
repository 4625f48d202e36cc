//! TLS on both sides: certificates that are reloaded, clients that must show one, upstreams with authorities of their
//! own, and HTTP/2.

use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::client::manifest_path;
use crate::larder::Builder;
use crate::upstream::{Image, TestUpstream};

pub(crate) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate for loopback and its key, as PEM.
pub(crate) fn issue(authority: &Authority) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    (
        params.signed_by(&key, authority).unwrap().pem(),
        key.serialize_pem(),
    )
}

pub(crate) fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_string_lossy().into_owned()
}

pub(crate) fn server_config(authority: &Authority) -> rustls::ServerConfig {
    use rustls_pki_types::pem::PemObject as _;
    let (certificate, key) = issue(authority);
    let certificate = rustls_pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

pub(crate) fn client(authority: &Authority) -> reqwest::ClientBuilder {
    let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([root])
        .no_proxy()
        .pool_max_idle_per_host(0)
}

#[tokio::test]
async fn an_upstream_with_an_authority_of_its_own_is_trusted_when_told_so() {
    let authority = authority();
    let upstream = TestUpstream::start_tls(server_config(&authority)).await;
    let image = Image::small(1);
    upstream.push_tagged("app", "1", &image);
    let path = manifest_path("app", "1");

    let larder = Builder::new(&upstream.url()).start().await;
    let distrusted = larder.get(&path).await;
    assert_eq!(distrusted.status, 502, "{}", distrusted.text());

    let builder = Builder::new(&upstream.url());
    let ca = write(builder.folder(), "ca.pem", &authority.pem());
    let larder = builder.set("larder.ca", ca.as_str()).start().await;
    larder.get(&path).await.is_whole(&image.manifest.bytes);

    let builder = Builder::new(&upstream.url());
    let ca = write(builder.folder(), "ca.pem", &authority.pem());
    let larder = builder.env("SSL_CERT_FILE", &ca).start().await;
    larder.get(&path).await.is_whole(&image.manifest.bytes);

    let larder = Builder::new(&upstream.url())
        .set("larder.insecure", true)
        .start()
        .await;
    larder.get(&path).await.is_whole(&image.manifest.bytes);
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let (old, new) = (authority(), authority());
    let upstream = TestUpstream::start().await;
    let builder = Builder::new(&upstream.url());
    let folder = builder.folder().to_owned();
    let (certificate, key) = issue(&old);
    let (certificate, key) = (
        write(&folder, "tls.crt", &certificate),
        write(&folder, "tls.key", &key),
    );
    let larder = builder
        .set("http.tls.certificate", certificate.as_str())
        .set("http.tls.key", key.as_str())
        .start()
        .await;
    let url = format!("https://{}/v2/", larder.registry);
    let first = client(&old).build().unwrap();
    let answer = first.get(&url).send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.version()),
        (200, http::Version::HTTP_2)
    );
    let h1 = client(&old)
        .http1_only()
        .build()
        .unwrap()
        .get(&url)
        .send()
        .await
        .unwrap();
    assert_eq!(
        (h1.status().as_u16(), h1.version()),
        (200, http::Version::HTTP_11)
    );

    let (certificate, key) = issue(&new);
    write(&folder, "tls.crt.new", &certificate);
    write(&folder, "tls.key.new", &key);
    std::fs::rename(folder.join("tls.key.new"), folder.join("tls.key")).unwrap();
    std::fs::rename(folder.join("tls.crt.new"), folder.join("tls.crt")).unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(15);
    while client(&new).build().unwrap().get(&url).send().await.is_err() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the old certificate is still shown:\n{}",
            larder.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn clients_without_a_certificate_are_refused_where_one_is_required() {
    let authority = authority();
    let upstream = TestUpstream::start().await;
    let builder = Builder::new(&upstream.url());
    let folder = builder.folder().to_owned();
    let (certificate, key) = issue(&authority);
    let larder = builder
        .set("http.tls.certificate", write(&folder, "tls.crt", &certificate))
        .set("http.tls.key", write(&folder, "tls.key", &key))
        .set(
            "http.tls.clientcas",
            vec![write(&folder, "ca.pem", &authority.pem())],
        )
        .start()
        .await;
    let url = format!("https://{}/v2/", larder.registry);
    assert!(
        client(&authority)
            .build()
            .unwrap()
            .get(&url)
            .send()
            .await
            .is_err()
    );
    let (certificate, key) = issue(&authority);
    let identity = reqwest::Identity::from_pem(format!("{certificate}{key}").as_bytes()).unwrap();
    let known = client(&authority).identity(identity).build().unwrap();
    assert_eq!(known.get(&url).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn http2_without_tls_is_spoken_where_it_is_enabled() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(2);
    upstream.push_tagged("app", "1", &image);
    let larder = Builder::new(&upstream.url())
        .set("http.h2c.enabled", true)
        .start()
        .await;
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .no_proxy()
        .build()
        .unwrap();
    let url = format!("http://{}{}", larder.registry, manifest_path("app", "1"));
    let answer = client.get(&url).send().await.unwrap();
    assert_eq!(answer.version(), http::Version::HTTP_2);
    assert_eq!(answer.bytes().await.unwrap(), image.manifest.bytes);
    let head = client.head(&url).send().await.unwrap();
    assert_eq!(
        head.headers()["content-length"],
        image.manifest.bytes.len().to_string().as_str()
    );
}
