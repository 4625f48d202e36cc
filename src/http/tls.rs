//! TLS on the listener: certificates from PEM files, read again when they change, and client certificates in
//! distribution's five manners.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    SupportedCipherSuite,
};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

use crate::config::{ClientAuth, Tls, TlsVersion};

/// Files are looked at again when a client comes after so long.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// TLS cannot be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("`{path}` holds no usable {what}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
        /// Why it is not.
        reason: String,
    },
    /// The certificate and the key do not belong together, or the key is of no supported kind.
    #[error("the certificate in `{certificate}` and the key in `{key}` do not work together")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The versions, cipher suites or authorities do not work together.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// Accepts TLS connections; cheap to clone.
#[derive(Clone)]
pub struct TlsAcceptor(Arc<Reloading>);

struct Reloading {
    settings: Tls,
    is_http2_enabled: bool,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    stamps: Vec<Option<Stamp>>,
    looked_at: Instant,
}

/// What tells one content of a file from the next.
type Stamp = (SystemTime, u64);

impl TlsAcceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] naming the file that is wrong.
    pub fn new(settings: Tls, is_http2_enabled: bool) -> Result<Self, TlsError> {
        let stamps = stamps(&settings);
        let config = server_config(&settings, is_http2_enabled)?;
        let current = Mutex::new(Current {
            config: Arc::new(config),
            stamps,
            looked_at: Instant::now(),
        });
        Ok(Self(Arc::new(Reloading {
            settings,
            is_http2_enabled,
            current,
        })))
    }

    /// Makes the next client cause a look at the files.
    #[cfg(test)]
    pub(crate) fn look_again(&self) {
        let mut current = self.0.current.lock();
        if let Some(before) = current.looked_at.checked_sub(LOOK_INTERVAL) {
            current.looked_at = before;
        }
    }

    pub(crate) async fn accept<T>(&self, stream: T) -> io::Result<TlsStream<T>>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.0.config();
        tokio_rustls::TlsAcceptor::from(config).accept(stream).await
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsAcceptor").field(&self.0.settings).finish()
    }
}

impl Reloading {
    /// What holds now. Files that changed are read again; if they are wrong, what held before holds on.
    fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock();
        if current.looked_at.elapsed() < LOOK_INTERVAL {
            return current.config.clone();
        }
        current.looked_at = Instant::now();
        let stamps = stamps(&self.settings);
        if stamps != current.stamps {
            current.stamps = stamps;
            match server_config(&self.settings, self.is_http2_enabled) {
                Ok(config) => {
                    tracing::info!(certificate = %self.settings.certificate.display(), "TLS files changed and are in use");
                    current.config = Arc::new(config);
                }
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::warn!(%error, "TLS files changed but are wrong; the ones before stay in use");
                }
            }
        }
        current.config.clone()
    }
}

/// An error with its causes in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn stamps(settings: &Tls) -> Vec<Option<Stamp>> {
    std::iter::once(&settings.certificate)
        .chain([&settings.key])
        .chain(&settings.client_cas)
        .map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        })
        .collect()
}

fn server_config(settings: &Tls, is_http2_enabled: bool) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(provider(&settings.cipher_suites));
    let versions: &[&rustls::SupportedProtocolVersion] = match settings.minimum_version {
        TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        TlsVersion::Tls13 => &[&rustls::version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| TlsError::Setup(error.to_string()))?;
    let builder = if settings.client_cas.is_empty() {
        builder.with_no_client_auth()
    } else {
        builder.with_client_cert_verifier(client_verifier(settings, &provider)?)
    };
    let chain = certificates(&settings.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&settings.key)
        .map_err(|error| pem_error(&settings.key, "private key", error))?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|source| TlsError::Pair {
            certificate: settings.certificate.clone(),
            key: settings.key.clone(),
            source,
        })?;
    if is_http2_enabled {
        config.alpn_protocols.push(b"h2".to_vec());
    }
    config.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(config)
}

/// The cryptography, with TLS 1.2 narrowed to the named suites; those of TLS 1.3 are always on, as in Go.
fn provider(names: &[String]) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    if !names.is_empty() {
        provider.cipher_suites.retain(|suite| match suite {
            SupportedCipherSuite::Tls13(_) => true,
            SupportedCipherSuite::Tls12(_) => {
                let name = suite.suite().as_str().unwrap_or_default();
                names.iter().any(|wanted| wanted == name)
            }
        });
    }
    provider
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "certificate";
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| pem_error(path, what, error))?;
    if chain.is_empty() {
        return Err(TlsError::Content {
            path: path.to_owned(),
            what,
            reason: "there is no PEM block of that kind".to_owned(),
        });
    }
    Ok(chain)
}

fn pem_error(path: &Path, what: &'static str, error: pem::Error) -> TlsError {
    let path = path.to_owned();
    match error {
        pem::Error::Io(source) => TlsError::Read { path, source },
        pem::Error::NoItemsFound => TlsError::Content {
            path,
            what,
            reason: "there is no PEM block of that kind".to_owned(),
        },
        other => TlsError::Content {
            path,
            what,
            reason: other.to_string(),
        },
    }
}

fn client_verifier(
    settings: &Tls,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for path in &settings.client_cas {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| TlsError::Content {
                path: path.clone(),
                what: "authority",
                reason: error.to_string(),
            })?;
        }
    }
    let roots = Arc::new(roots);
    let checked = || WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let any = |is_required| -> Arc<dyn ClientCertVerifier> {
        Arc::new(AnyCertificate {
            provider: provider.clone(),
            is_required,
        })
    };
    let built = match settings.client_auth {
        ClientAuth::RequestClientCert => return Ok(any(false)),
        ClientAuth::RequireAnyClientCert => return Ok(any(true)),
        ClientAuth::VerifyClientCertIfGiven => checked().allow_unauthenticated().build(),
        ClientAuth::RequireAndVerifyClientCert => checked().build(),
    };
    built.map_err(|error| TlsError::Setup(error.to_string()))
}

/// Takes any certificate, as long as the client has its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
    is_required: bool,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
