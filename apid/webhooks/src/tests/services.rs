//! Tests of the resolution of Services: file, external name, EndpointSlices.

use super::*;

fn service(spec: Value) -> Value {
    json!({"metadata": {"name": "hook", "namespace": "team"}, "spec": spec})
}

fn slice(service: &str, port: Value, endpoints: Value) -> Value {
    json!({
        "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [port], "endpoints": endpoints,
    })
}

async fn resolution_error(stored: FixedServices) -> String {
    let hook = Webhook::start(|_| None).await;
    let (clients, _) = clients(stored, "");
    clients.post(&hook.service(), None, call(LONG_TIMEOUT)).await.unwrap_err().to_string()
}

#[tokio::test]
async fn service_is_resolved_by_file_external_name_and_ready_endpoint() {
    let hook = Webhook::start(|_| Some((200, b"ok".to_vec()))).await;
    let port = json!({"port": 8443, "name": "web"});
    let target = json!({"port": hook.port, "name": "web"});
    let unready = json!({"addresses": ["192.0.2.1"], "conditions": {"ready": false}});
    let ready = json!({"addresses": ["127.0.0.1"], "conditions": {"ready": true}});
    let slices = [
        slice("other", target.clone(), json!([{"addresses": ["192.0.2.2"]}])),
        slice("hook", json!({"port": 1, "name": "metrics"}), json!([{"addresses": ["192.0.2.3"]}])),
        slice("hook", target, json!([unready, ready])),
    ];
    let external = json!({"type": "ExternalName", "externalName": "127.0.0.1"});
    let configuration = hook.service();
    let at_port = {
        let service = json!({"namespace": "team", "name": "hook", "path": "/check", "port": hook.port});
        ClientConfiguration::read(&json!({"service": service, "caBundle": hook.ca})).unwrap()
    };
    for (stored, map, configuration) in [
        (FixedServices::default(), format!("team/hook:8443: {}", hook.origin()), &configuration),
        (FixedServices::new(service(external), &[]), String::new(), &at_port),
        (FixedServices::new(service(json!({"ports": [port]})), &slices), String::new(), &configuration),
    ] {
        let (clients, _) = clients(stored, &map);
        let body = clients.post(configuration, None, call(LONG_TIMEOUT)).await.unwrap();
        assert_eq!(body, "ok");
        assert_eq!(hook.received().last().unwrap().path, "/check?timeout=60s");
    }
}

#[tokio::test]
async fn unresolvable_service_error_names_every_way_to_set_an_address() {
    let prefix = "Post \"https://hook.team.svc:8443/check?timeout=60s\": ";
    let error = resolution_error(FixedServices::default()).await;
    assert!(error.starts_with(&format!("{prefix}service \"hook\" not found; ")), "{error}");
    for way in ["\"team/hook:8443\"", "--service-resolver-file", "external name", "EndpointSlices"] {
        assert!(error.contains(way), "{error}");
    }
    let ports = |port: u16| service(json!({"ports": [{"port": port}]}));
    assert_eq!(
        resolution_error(FixedServices::new(ports(80), &[])).await,
        format!("{prefix}no service port 8443 found for service \"hook\"")
    );
    let unready = slice(
        "hook",
        json!({"port": 1}),
        json!([{"addresses": ["127.0.0.1"], "conditions": {"ready": false}}]),
    );
    let error = resolution_error(FixedServices::new(ports(8443), &[unready])).await;
    for way in ["\"team/hook:8443\"", "--service-resolver-file", "ExternalName", "EndpointSlice"] {
        assert!(error.starts_with(prefix) && error.contains(way), "{error}");
    }
}
