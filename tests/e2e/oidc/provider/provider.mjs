// OpenID provider for the tests: the package `oidc-provider` over TLS.
//
// Arguments: files of the serving certificate and key, port (0 selects a free one), and a prefix of the key ids,
// which are generated at start. The program prints its port. Clients are named after the signing algorithm of their ID
// tokens. A POST to /issue with {"client", "subject"} returns an ID token like that of the token endpoint.
import { generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [cert, key, port, name] = process.argv.slice(2);
// The package is installed in the working directory.
const require = createRequire(`${process.cwd()}/`);
const { Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));
const rsa = ['rsa', { modulusLength: 2048 }];
const kinds = { RS256: rsa, ES256: ['ec', { namedCurve: 'P-256' }], PS256: rsa };
const algorithms = Object.keys(kinds);
const keys = algorithms.map((alg) => {
  const jwk = generateKeyPairSync(...kinds[alg]).privateKey.export({ format: 'jwk' });
  return { ...jwk, kid: `${name}-${alg}`, alg, use: 'sig' };
});

const server = createServer({ cert: readFileSync(cert), key: readFileSync(key) });
server.listen(Number(port), '127.0.0.1', () => {
  const issuer = `https://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    jwks: { keys },
    enabledJWA: { idTokenSigningAlgValues: algorithms },
    clients: algorithms.map((algorithm) => ({
      client_id: algorithm,
      client_secret: 'secret',
      grant_types: ['authorization_code'],
      redirect_uris: ['https://client.test/cb'],
      id_token_signed_response_alg: algorithm,
    })),
    claims: { openid: ['sub', 'groups'] },
    conformIdTokenClaims: false,
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, groups: ['staff'] }) }),
  });
  const callback = provider.callback();
  server.on('request', async (request, response) => {
    if (request.method !== 'POST' || request.url !== '/issue') return callback(request, response);
    try {
      let body = '';
      for await (const part of request) body += part;
      const { client: id, subject } = JSON.parse(body);
      const client = await provider.Client.find(id);
      const ctx = { oidc: { provider, client, entities: {}, issuer } };
      const token = new provider.IdToken({ sub: subject, groups: ['staff'] }, { client, ctx });
      token.scope = 'openid';
      response.end(await token.issue({ use: 'idtoken' }));
    } catch (error) {
      response.statusCode = 500;
      response.end(String(error.stack));
    }
  });
  console.log(server.address().port);
});
