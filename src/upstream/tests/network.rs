//! What networks do: redirects, breaks, stalls, TLS.

use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A server that treats each connection by its number, starting at 0.
async fn raw<F>(treat: impl Fn(TcpStream, usize) -> F + Send + 'static) -> (Url, JoinSet<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(treat(stream, number));
        }
    });
    (url, tasks)
}

/// Reads a request up to its end.
async fn take_request(stream: &mut TcpStream) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
}

async fn say(stream: &mut TcpStream, text: &str) {
    take_request(stream).await;
    stream.write_all(text.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_redirect_is_followed_without_our_authorization_and_with_everything_else() {
    let cdn = Arc::new(Server::start(|_, _| reply(206, &[("content-range", "bytes 2-4/5")], "234")).await);
    let signed = "/blob%2Fx/~a?X-Sig=A%2Bb%2fc/=&e=1;2,3!(*)&&q=%27";
    let location: &'static str = format!("//{}{signed}", cdn.host()).leak();
    let server = Server::start(move |seen, _| match &seen.authorization {
        None => reply(401, &[("www-authenticate", "Basic realm=x")], ""),
        Some(_) if seen.target.ends_with("hop") => reply(307, &[("location", location)], ""),
        Some(_) => reply(302, &[("location", "?hop")], ""),
    })
    .await;
    let upstream = connect(Settings {
        credentials: alice(),
        ..settings(&server.url)
    });
    let range = Some(Range {
        start: 2,
        end: Some(5),
    });
    assert_eq!(
        read(upstream.get_blob(&name(), &digest(), range).await.unwrap())
            .await
            .unwrap(),
        b"234"
    );
    let at_registry = server.seen();
    assert_eq!(at_registry.len(), 3);
    assert_eq!(at_registry.last().unwrap().target, format!("{}?hop", blob_path()));
    let agent = concat!("larder/", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        cdn.seen(),
        [Seen {
            method: "GET".to_owned(),
            target: signed.to_owned(),
            authorization: None,
            range: Some("bytes=2-4".to_owned()),
            encoding: Some("identity".to_owned()),
            agent: Some(agent.to_owned()),
        }]
    );
}

#[tokio::test]
async fn redirects_end_and_nonsense_ones_are_errors() {
    let circle = Server::start(|_, _| reply(302, &[("location", "?x")], "")).await;
    let got = connect(settings(&circle.url))
        .get_blob(&name(), &digest(), None)
        .await;
    assert!(matches!(got, Err(Error::Invalid { .. })), "{got:?}");
    assert_eq!(circle.seen().len(), 11);
    let nowhere = Server::start(|_, _| reply(307, &[], "")).await;
    let got = connect(settings(&nowhere.url))
        .get_blob(&name(), &digest(), None)
        .await;
    assert!(matches!(got, Err(Error::Invalid { .. })), "{got:?}");
}

#[tokio::test]
async fn a_signature_that_ran_out_is_asked_for_once_more() {
    let cdn = Arc::new(
        Server::start(|seen, _| match seen.target.as_str() {
            "/0" => reply(403, &[("content-type", "application/xml")], "<Error/>"),
            "/1" => reply(200, &[], "x"),
            _ => reply(400, &[], ""),
        })
        .await,
    );
    let base = cdn.url.clone();
    let server =
        Server::start(move |_, before| reply(307, &[("location", &format!("{base}{before}"))], "")).await;
    let upstream = connect(settings(&server.url));
    assert_eq!(
        read(upstream.get_blob(&name(), &digest(), None).await.unwrap())
            .await
            .unwrap(),
        b"x"
    );
    assert_eq!((server.seen().len(), cdn.seen().len()), (2, 2));
    let range = Some(Range { start: 1, end: None });
    let got = upstream.get_blob(&name(), &digest(), range).await;
    assert!(matches!(got, Err(Error::RangeRefused { status: 400 })), "{got:?}");
    assert_eq!((server.seen().len(), cdn.seen().len()), (4, 4));
}

#[tokio::test]
async fn small_requests_outlive_broken_connections_and_gateways() {
    let answers = [
        "",
        "HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ];
    let (url, _tasks) = raw(move |mut stream, number| async move {
        say(&mut stream, answers[number]).await;
    })
    .await;
    let heard = Arc::new(Heard::default());
    let upstream = Upstream::new(
        settings(&url),
        Arc::clone(&heard) as Arc<dyn Observer>,
        Clock::default(),
    )
    .unwrap();
    assert_eq!(
        &upstream.get_manifest(&name(), &tag()).await.unwrap().bytes[..],
        b"{}"
    );
    assert_eq!(*heard.0.lock(), ["manifest cut", "manifest 503", "manifest 200"]);
}

#[tokio::test]
async fn client_errors_are_never_repeated() {
    for status in [400, 403, 404, 500] {
        let server = Server::start(move |_, _| reply(status, &[], "")).await;
        connect(settings(&server.url))
            .get_manifest(&name(), &tag())
            .await
            .unwrap_err();
        assert_eq!(server.seen().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_body_that_ends_or_stalls_is_told() {
    let (url, _tasks) = raw(|mut stream, number| async move {
        say(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123").await;
        if number == 1 {
            stream.set_zero_linger().unwrap();
        } else if number == 2 {
            let _ = stream.read_u8().await;
        }
    })
    .await;
    let idle_timeout = Duration::from_millis(300);
    let upstream = connect(Settings {
        idle_timeout,
        ..settings(&url)
    });
    for ending in ["FIN", "RST", "stall"] {
        let blob = upstream.get_blob(&name(), &digest(), None).await.unwrap();
        assert_eq!((blob.length, blob.total_bytes), (Some(10), Some(10)));
        let error = read(blob).await.unwrap_err();
        let is_right = match ending {
            "FIN" => matches!(error, Error::Cut { received: 4, .. }),
            // A reset may overtake the bytes before it.
            "RST" => matches!(error, Error::Cut { .. }),
            _ => matches!(
                error,
                Error::TimedOut {
                    phase: Phase::Body,
                    ..
                }
            ),
        };
        assert!(is_right, "{ending}: {error:?}");
    }
}

#[tokio::test]
async fn a_registry_that_is_not_there_or_does_not_answer_fails_in_time() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = Url::parse(&format!("http://{}", unused.local_addr().unwrap())).unwrap();
    drop(unused);
    match connect(settings(&gone)).get_manifest(&name(), &tag()).await {
        Err(Error::Unreachable { host, reason, .. }) => {
            assert_eq!(host, transport::host_of(&gone));
            assert!(reason.contains("refused"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let (silent, _tasks) = raw(|mut stream, _| async move {
        take_request(&mut stream).await;
        let _ = stream.read_u8().await;
    })
    .await;
    let short = Duration::from_millis(200);
    let upstream = connect(Settings {
        connect_timeout: short,
        header_timeout: short,
        ..settings(&silent)
    });
    let began = tokio::time::Instant::now();
    let got = upstream.get_manifest(&name(), &tag()).await;
    assert!(
        matches!(
            got,
            Err(Error::TimedOut {
                phase: Phase::Headers,
                ..
            })
        ),
        "{got:?}"
    );
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_path_before_v2_and_a_name_space_are_part_of_every_request() {
    let server = Server::start(|_, _| reply(200, &[], r#"{"tags":[]}"#)).await;
    let remote_url = server.url.join("mirror/docker/").unwrap();
    let send_ns = Some("docker.io".to_owned());
    let upstream = connect(Settings {
        remote_url,
        send_ns,
        ..settings(&server.url)
    });
    upstream.get_manifest(&name(), &tag()).await.unwrap();
    upstream.list_tags(&name(), Some(3), Some("a")).await.unwrap();
    let targets: Vec<_> = server.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(
        targets,
        [
            "/mirror/docker/v2/team/app/manifests/v1?ns=docker.io",
            "/mirror/docker/v2/team/app/tags/list?ns=docker.io&n=3&last=a"
        ]
    );
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn authority() -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    Authority {
        issuer: Issuer::new(params, key),
        pem,
    }
}

/// What a TLS server needs: a certificate of `authority`, and to want one of `client`, if it is given.
fn tls_config(authority: &Authority, client: Option<&Authority>) -> rustls::ServerConfig {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority.issuer).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let mut roots = rustls::RootCertStore::empty();
            roots
                .add(CertificateDer::from_pem_slice(client.pem.as_bytes()).unwrap())
                .unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let key = rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    builder
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap()
}

/// A TLS server that answers every request with `body`, by HTTP/2 where `config` offers it.
async fn tls_server(config: rustls::ServerConfig, body: Vec<u8>) -> (Url, JoinSet<()>) {
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let (url, tasks) = raw(move |stream, _| {
        let (acceptor, body) = (acceptor.clone(), body.clone());
        async move {
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = hyper::service::service_fn(move |request: http::Request<_>| {
                let version = format!("{:?}", request.version());
                let response = reply(200, &[("content-type", &version)], body.clone());
                std::future::ready(Ok::<_, std::convert::Infallible>(response))
            });
            let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await;
    (
        Url::parse(&url.as_str().replacen("http:", "https:", 1)).unwrap(),
        tasks,
    )
}

#[tokio::test]
async fn http2_is_spoken_with_a_registry_that_offers_it() {
    let authority = authority();
    let mut config = tls_config(&authority, None);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let content: Vec<u8> = (0..(3_u32 << 20)).map(|n| n.to_le_bytes()[1]).collect();
    let (url, _tasks) = tls_server(config, content.clone()).await;
    let upstream = connect(Settings {
        insecure: true,
        ..settings(&url)
    });
    let (name, digest) = (name(), digest());
    let all = (0..8).map(|_| async {
        read(upstream.get_blob(&name, &digest, None).await.unwrap())
            .await
            .unwrap()
    });
    for got in futures::future::join_all(all).await {
        assert!(got == content);
    }
    let head = upstream.head_blob(&name, &digest).await.unwrap();
    assert_eq!(
        head,
        BlobHead {
            size_bytes: 3 << 20,
            content_type: Some("HTTP/2.0".to_owned())
        }
    );
}

#[tokio::test]
async fn tls_believes_the_extra_authority_or_everyone_but_no_stranger() {
    let authority = authority();
    let (url, _tasks) = tls_server(tls_config(&authority, None), b"{}".to_vec()).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &authority.pem).unwrap();
    let extra_ca = Some(file.path().to_owned());
    connect(Settings {
        extra_ca,
        ..settings(&url)
    })
    .get_manifest(&name(), &tag())
    .await
    .unwrap();
    connect(Settings {
        insecure: true,
        ..settings(&url)
    })
    .get_manifest(&name(), &tag())
    .await
    .unwrap();
    match connect(settings(&url)).get_manifest(&name(), &tag()).await {
        Err(Error::Unreachable { reason, .. }) => assert!(reason.contains("certificate"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let (server_authority, client_authority) = (authority(), authority());
    let (url, _tasks) = tls_server(
        tls_config(&server_authority, Some(&client_authority)),
        b"{}".to_vec(),
    )
    .await;
    let folder = tempfile::tempdir().unwrap();
    let (ca, certificate, key) = (
        folder.path().join("ca"),
        folder.path().join("certificate"),
        folder.path().join("key"),
    );
    let client_key = KeyPair::generate().unwrap();
    let signed = CertificateParams::new(vec!["larder".to_owned()])
        .unwrap()
        .signed_by(&client_key, &client_authority.issuer)
        .unwrap();
    std::fs::write(&ca, &server_authority.pem).unwrap();
    std::fs::write(&certificate, signed.pem()).unwrap();
    std::fs::write(&key, client_key.serialize_pem()).unwrap();
    let with = Settings {
        extra_ca: Some(ca.clone()),
        ..settings(&url)
    };
    assert!(connect(with.clone()).get_manifest(&name(), &tag()).await.is_err());
    let with = Settings {
        client_certificate: Some((certificate, key)),
        ..with
    };
    connect(with).get_manifest(&name(), &tag()).await.unwrap();
}

#[tokio::test]
async fn files_that_are_no_certificates_are_told_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let base = settings(&Url::parse("https://r.example.com").unwrap());
    let build = |settings| Upstream::new(settings, Arc::new(Heard::default()), Clock::default()).map(|_| ());
    let empty = Settings {
        extra_ca: Some(file.path().to_owned()),
        ..base.clone()
    };
    assert!(matches!(build(empty), Err(BuildError::Certificate { .. })));
    let missing = Settings {
        extra_ca: Some("/nonexistent/ca".into()),
        ..base.clone()
    };
    assert!(matches!(build(missing), Err(BuildError::Read { .. })));
    let pair = Some((file.path().to_owned(), file.path().to_owned()));
    assert!(matches!(
        build(Settings {
            client_certificate: pair,
            ..base.clone()
        }),
        Err(BuildError::Certificate { .. })
    ));
    let ftp = Settings {
        remote_url: Url::parse("ftp://x/").unwrap(),
        ..base.clone()
    };
    assert!(matches!(build(ftp), Err(BuildError::Url { .. })));
    build(base).unwrap();
}
