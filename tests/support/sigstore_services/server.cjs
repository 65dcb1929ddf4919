// Sigstore's own stand-ins (npm: @sigstore/mock) for Fulcio, its certificate log and Rekor, served over HTTP.
// Prints the ClientTrustConfig of this instance as one line, then answers until its standard input ends.
const crypto = require("crypto"), http = require("http");
const mock = require("@sigstore/mock");
const pair = () => crypto.generateKeyPairSync("ec", { namedCurve: "P-256" });
const sha256 = (data) => crypto.createHash("sha256").update(data).digest();
// What Rekor logs of a DSSE envelope (pkg/types/dsse/v0.0.1): digests and signatures, not the envelope. The mock logs what it is given.
function logged(body) {
  const entry = JSON.parse(body), content = entry.spec.proposedContent;
  if (!content) return body;
  const envelope = JSON.parse(content.envelope);
  const hash = (data) => ({ algorithm: "sha256", value: sha256(data).toString("hex") });
  entry.spec = {
    envelopeHash: hash(content.envelope),
    payloadHash: hash(Buffer.from(envelope.payload, "base64")),
    signatures: envelope.signatures.map(({ sig }) => ({ signature: sig, verifier: content.verifiers[0] })),
  };
  return JSON.stringify(entry);
}
// Fulcio takes the token as a bearer, too, and the request for a certificate in base64; the mock takes neither.
function asked(request, body) {
  const { certificateSigningRequest: csr } = JSON.parse(body);
  const oidcIdentityToken = (request.headers.authorization || "").replace("Bearer ", "");
  return JSON.stringify({ credentials: { oidcIdentityToken }, certificateSigningRequest: Buffer.from(csr, "base64").toString() });
}
async function main() {
  const [caKeys, ctKeys, logKeys] = [pair(), pair(), pair()];
  const ctlog = await mock.initializeCTLog(ctKeys);
  const ca = await mock.initializeCA(caKeys, ctlog);
  const server = http.createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", async () => {
      const handler = handlers.find(({ path }) => path === request.url);
      const body = Buffer.concat(chunks).toString();
      const done = handler ? await handler.fn(handler === handlers[1] ? logged(body) : asked(request, body)) : { statusCode: 404, response: "" };
      response.writeHead(done.statusCode, { "content-type": done.contentType || "text/plain" }).end(done.response);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  const tlog = await mock.initializeTLog(url, logKeys);
  const handlers = [mock.fulcioHandler(ca), mock.rekorHandler(tlog)];
  const start = new Date(Date.now() - 60_000).toISOString();
  const bytes = (data) => Buffer.from(data.buffer ?? data).toString("base64");
  const key = (der) => ({ hashAlgorithm: "SHA2_256", logId: { keyId: sha256(der).toString("base64") },
    publicKey: { rawBytes: der.toString("base64"), keyDetails: "PKIX_ECDSA_P256_SHA_256", validFor: { start } }, baseUrl: url });
  const service = { url, majorApiVersion: 1, validFor: { start }, operator: "test" };
  console.log(JSON.stringify({
    mediaType: "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
    trustedRoot: {
      mediaType: "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
      tlogs: [key(tlog.publicKey)], ctlogs: [key(ctlog.publicKey)],
      certificateAuthorities: [{ subject: { commonName: "test", organization: "test" }, uri: url,
        certChain: { certificates: [{ rawBytes: bytes(ca.rootCertificate) }] }, validFor: { start } }],
    },
    signingConfig: { mediaType: "application/vnd.dev.sigstore.signingconfig.v0.2+json",
      caUrls: [service], oidcUrls: [], rekorTlogUrls: [service], tsaUrls: [],
      rekorTlogConfig: { selector: "ANY" }, tsaConfig: { selector: "ANY" } },
  }));
  process.stdin.on("end", () => process.exit()).resume();
}
main();
