// Typed clients: the life cycle of objects, subresources, server-side apply, reviews and rejections.

package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	rbacapply "k8s.io/client-go/applyconfigurations/rbac/v1"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"
)

// Options without content.
var (
	creating = metav1.CreateOptions{}
	getting  = metav1.GetOptions{}
	updating = metav1.UpdateOptions{}
	patching = metav1.PatchOptions{}
	deleting = metav1.DeleteOptions{}
	listing  = metav1.ListOptions{}
)

// manageTypedObjects uses the typed clients, with objects in JSON and in Protobuf.
func manageTypedObjects(config *rest.Config) {
	equal("minor version", must(kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion()).Minor, "33")
	encodings := map[string]string{"json": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf}
	for name, mediaType := range encodings {
		client := kubernetes.NewForConfigOrDie(encoded(config, mediaType))
		namespace := "typed-" + name
		made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		must(client.CoreV1().Namespaces().Create(background, made, creating))
		maps := client.CoreV1().ConfigMaps(namespace)
		manageConfigMaps(maps)
		readPages(maps)
		watchConfigMap(maps)
		applyConfigMaps(maps)
		manageDeployments(client, namespace)
		managePods(client, namespace)
		review(client, namespace)
		rejectUsers(config, namespace)
		succeed(client.CoreV1().Namespaces().Delete(background, namespace, deleting))
	}
}

// encoded returns a configuration for objects of one media type. Responses with objects of another type end the session.
func encoded(config *rest.Config, mediaType string) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = mediaType, mediaType
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := inner.RoundTrip(request)
			if err == nil && strings.HasPrefix(request.Header.Get("Accept"), mediaType) {
				received := response.Header.Get("Content-Type")
				check(strings.HasPrefix(received, mediaType), "%s %s: %s", request.Method, request.URL, received)
			}
			return response, err
		})
	})
	return config
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	labels := map[string]string{"part": "typed"}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: data}
}

func manageConfigMaps(maps typedv1.ConfigMapInterface) {
	one := configMap("one", map[string]string{"a": "1", "b": "2"})
	one.BinaryData = map[string][]byte{"bytes": {0, 255}}
	tried := must(maps.Create(background, one, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
	check(tried.UID != "", "a dry run returns the object")
	_, err := maps.Get(background, "one", getting)
	check(apierrors.IsNotFound(err), "a dry run stores nothing: %v", err)
	made := must(maps.Create(background, one, creating))
	equal("binary data", string(made.BinaryData["bytes"]), "\x00\xff")
	_, err = maps.Create(background, one, creating)
	check(apierrors.IsAlreadyExists(err), "second create: %v", err)
	generated := configMap("", nil)
	generated.GenerateName = "generated-"
	check(len(must(maps.Create(background, generated, creating)).Name) > len("generated-"), "a generated name")
	_, err = maps.Create(background, configMap("Not a name", nil), creating)
	check(apierrors.IsInvalid(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid), "%v", err)

	made.Data["c"] = "3"
	updated := must(maps.Update(background, made, updating))
	_, err = maps.Update(background, made, updating)
	check(apierrors.IsConflict(err), "update of an old version: %v", err)
	attempts := 0
	succeed(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		attempts++
		if attempts > 1 {
			made = must(maps.Get(background, "one", getting))
		}
		made.Data["d"] = "4"
		_, err := maps.Update(background, made, updating)
		return err
	}))
	equal("attempts", attempts, 2)

	patches := []struct {
		kind     types.PatchType
		patch    string
		expected string
	}{
		{types.MergePatchType, `{"data": {"a": null, "e": "5"}}`, "map[b:2 c:3 d:4 e:5]"},
		{types.StrategicMergePatchType, `{"data": {"$patch": "replace", "f": "6"}}`, "map[f:6]"},
		{types.JSONPatchType, `[{"op": "test", "path": "/data/f", "value": "6"}, {"op": "remove", "path": "/data/f"}]`, "map[]"},
	}
	for _, row := range patches {
		patched := must(maps.Patch(background, "one", row.kind, []byte(row.patch), patching))
		equal(string(row.kind), fmt.Sprint(patched.Data), row.expected)
	}
	_, err = maps.Patch(background, "none", types.MergePatchType, []byte("{}"), patching)
	check(apierrors.IsNotFound(err), "patch of a missing object: %v", err)

	another := types.UID("another")
	err = maps.Delete(background, "one", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &another}})
	check(apierrors.IsConflict(err), "delete of another uid: %v", err)
	err = maps.Delete(background, "one", *metav1.NewRVDeletionPrecondition(updated.ResourceVersion))
	check(apierrors.IsConflict(err), "delete of an old version: %v", err)
	succeed(maps.Delete(background, "one", deleting))
	check(apierrors.IsNotFound(maps.Delete(background, "one", deleting)), "a second delete")
}

// readPages reads a list in pages of three objects and deletes its objects.
func readPages(maps typedv1.ConfigMapInterface) {
	for number := range 8 {
		must(maps.Create(background, configMap(fmt.Sprintf("paged-%d", number), nil), creating))
	}
	pages := 0
	reader := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		pages++
		return maps.List(background, options)
	}))
	reader.PageSize = 3
	var names []string
	succeed(reader.EachListItem(background, metav1.ListOptions{LabelSelector: "part=typed"}, func(item runtime.Object) error {
		names = append(names, item.(*corev1.ConfigMap).Name)
		return nil
	}))
	check(len(names) == 9 && slices.IsSorted(names) && pages == 3, "%v in %d pages", names, pages)
	two := must(maps.List(background, metav1.ListOptions{FieldSelector: "metadata.name=paged-2"}))
	equal("selected objects", len(two.Items), 1)
	selected := metav1.ListOptions{LabelSelector: labels.Set{"part": "typed"}.String()}
	succeed(maps.DeleteCollection(background, deleting, selected))
	equal("left objects", len(must(maps.List(background, selected)).Items), 0)
}

// watchConfigMap watches the changes of an object from the version of a list.
func watchConfigMap(maps typedv1.ConfigMapInterface) {
	version := must(maps.List(background, listing)).ResourceVersion
	must(maps.Create(background, configMap("watched", nil), creating))
	must(maps.Patch(background, "watched", types.MergePatchType, []byte(`{"data": {"a": "1"}}`), patching))
	succeed(maps.Delete(background, "watched", deleting))
	timeout := int64(2)
	watched := must(maps.Watch(background, metav1.ListOptions{
		ResourceVersion: version, FieldSelector: "metadata.name=watched", AllowWatchBookmarks: true, TimeoutSeconds: &timeout,
	}))
	var events []watch.EventType
	for event := range watched.ResultChan() {
		check(event.Object.(*corev1.ConfigMap).ResourceVersion > "", "an event without a version: %v", event)
		events = append(events, event.Type)
	}
	check(len(events) > 3, "no bookmark at the end: %v", events)
	equal("events", fmt.Sprint(events[:3]), "[ADDED MODIFIED DELETED]")
	for _, event := range events[3:] {
		equal("later event", event, watch.Bookmark)
	}
}

// applyConfigMaps applies the fields of two managers, with a conflict.
func applyConfigMaps(maps typedv1.ConfigMapInterface) {
	left, right := metav1.ApplyOptions{FieldManager: "left"}, metav1.ApplyOptions{FieldManager: "right"}
	shared := func(data map[string]string) *coreapply.ConfigMapApplyConfiguration {
		return coreapply.ConfigMap("shared", "").WithLabels(map[string]string{"part": "typed"}).WithData(data)
	}
	must(maps.Apply(background, shared(map[string]string{"a": "1", "b": "1"}), left))
	must(maps.Apply(background, shared(map[string]string{"c": "2"}), right))
	_, err := maps.Apply(background, shared(map[string]string{"a": "2"}), right)
	isConflict := apierrors.IsConflict(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict)
	check(isConflict, "apply of a field of another manager: %v", err)
	right.Force = true
	applied := must(maps.Apply(background, shared(map[string]string{"a": "2"}), right))
	equal("applied data", fmt.Sprint(applied.Data), "map[a:2 b:1]")
	own := must(coreapply.ExtractConfigMap(applied, "left"))
	equal("data of the manager", fmt.Sprint(own.Data), "map[b:1]")
	again := must(maps.Apply(background, own, left))
	equal("version after an apply without change", again.ResourceVersion, applied.ResourceVersion)
}

func manageDeployments(client kubernetes.Interface, namespace string) {
	deployments := client.AppsV1().Deployments(namespace)
	replicas, app := int32(2), map[string]string{"app": "web"}
	made := must(deployments.Create(background, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a:1"}, {Name: "b", Image: "b:1"}}},
			},
		},
	}, creating))
	equal("default strategy", made.Spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	scale := must(deployments.GetScale(background, "web", getting))
	equal("selector of the scale", scale.Status.Selector, "app=web")
	scale.Spec.Replicas = 4
	must(deployments.UpdateScale(background, "web", scale, updating))
	image := `{"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:2"}]}}}}`
	patched := must(deployments.Patch(background, "web", types.StrategicMergePatchType, []byte(image), patching))
	equal("first image", patched.Spec.Template.Spec.Containers[0].Image, "a:1")
	equal("patched image", patched.Spec.Template.Spec.Containers[1].Image, "b:2")
	equal("replicas", *patched.Spec.Replicas, 4)
	equal("generation", patched.Generation, 3)

	patched.Status = appsv1.DeploymentStatus{ObservedGeneration: 3, Replicas: 4, ReadyReplicas: 3}
	replaced := must(deployments.Update(background, patched, updating))
	equal("status after an update of the object", replaced.Status.ReadyReplicas, 0)
	must(deployments.UpdateStatus(background, patched, updating))
	equal("status", must(deployments.Get(background, "web", getting)).Status.ReadyReplicas, 3)

	applied := must(deployments.Apply(background, appsapply.Deployment("web", namespace).WithSpec(
		appsapply.DeploymentSpec().WithTemplate(coreapply.PodTemplateSpec().WithSpec(coreapply.PodSpec().WithContainers(
			coreapply.Container().WithName("a").WithEnv(coreapply.EnvVar().WithName("KEY").WithValue("value")),
		))),
	), metav1.ApplyOptions{FieldManager: "sessions"}))
	equal("containers after an apply of one", len(applied.Spec.Template.Spec.Containers), 2)
	equal("applied variable", applied.Spec.Template.Spec.Containers[0].Env[0].Value, "value")
	propagation := metav1.DeletePropagationBackground
	succeed(deployments.Delete(background, "web", metav1.DeleteOptions{PropagationPolicy: &propagation}))

	sets := client.AppsV1().ReplicaSets(namespace)
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: appsv1.ReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: app}, Template: made.Spec.Template,
	}}
	must(sets.Create(background, set, creating))
	wider := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: autoscalingv1.ScaleSpec{Replicas: 5}}
	equal("replicas of the scale", must(sets.UpdateScale(background, "set", wider, updating)).Spec.Replicas, 5)
}

// managePods uses the subresources of Pods.
func managePods(client kubernetes.Interface, namespace string) {
	pods := client.CoreV1().Pods(namespace)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "loaf", Labels: map[string]string{"app": "loaf"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "crust", Image: "crust:1"}}},
	}
	made := must(pods.Create(background, pod, creating))
	equal("default restart policy", made.Spec.RestartPolicy, corev1.RestartPolicyAlways)
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "loaf"}, Target: corev1.ObjectReference{Kind: "Node", Name: "shelf"}}
	succeed(pods.Bind(background, binding, creating))
	bound := must(pods.Get(background, "loaf", getting))
	equal("node", bound.Spec.NodeName, "shelf")
	bound.Status.Phase, bound.Status.PodIP = corev1.PodRunning, "192.0.2.7"
	must(pods.UpdateStatus(background, bound, updating))
	debugger := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "knife", Image: "knife:1"}}
	bound = must(pods.Get(background, "loaf", getting))
	bound.Spec.EphemeralContainers = append(bound.Spec.EphemeralContainers, debugger)
	bound = must(pods.UpdateEphemeralContainers(background, "loaf", bound, updating))
	equal("ephemeral containers", len(bound.Spec.EphemeralContainers), 1)
	running := metav1.ListOptions{FieldSelector: "status.phase=Running,spec.nodeName=shelf", LabelSelector: "app in (loaf, bun),!old"}
	equal("running pods", len(must(pods.List(background, running)).Items), 1)
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "loaf"}}
	succeed(pods.EvictV1(background, eviction))
	evicted := must(pods.Get(background, "loaf", getting))
	check(evicted.DeletionTimestamp != nil, "the evicted Pod ends on its node")
	succeed(pods.Delete(background, "loaf", *metav1.NewDeleteOptions(0)))
}

// review creates a token of a ServiceAccount and asks about its user.
func review(client kubernetes.Interface, namespace string) {
	accounts := client.CoreV1().ServiceAccounts(namespace)
	must(accounts.Apply(background, coreapply.ServiceAccount("baker", namespace), metav1.ApplyOptions{FieldManager: "sessions"}))
	token := must(accounts.CreateToken(background, "baker", &authenticationv1.TokenRequest{}, creating)).Status.Token
	reviews := client.AuthenticationV1().TokenReviews()
	tokenReview := func(token string) authenticationv1.TokenReviewStatus {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		return must(reviews.Create(background, review, creating)).Status
	}
	user := "system:serviceaccount:" + namespace + ":baker"
	found := tokenReview(token)
	check(found.Authenticated, "the token is valid: %s", found.Error)
	equal("user of the token", found.User.Username, user)
	check(!tokenReview("unknown").Authenticated, "an unknown token is rejected")
	self := must(client.AuthenticationV1().SelfSubjectReviews().Create(background, &authenticationv1.SelfSubjectReview{}, creating))
	equal("own user", self.Status.UserInfo.Username, "admin")

	reading := authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "configmaps"}
	may := func() bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &reading}}
		return must(client.AuthorizationV1().SubjectAccessReviews().Create(background, review, creating)).Status.Allowed
	}
	check(!may(), "a new account may not read")
	grantReading(client, namespace)
	check(may(), "the account may read after the grant")
	local := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
	local.Spec.User, local.Spec.ResourceAttributes = user, &reading
	allowed := must(client.AuthorizationV1().LocalSubjectAccessReviews(namespace).Create(background, local, creating))
	check(allowed.Status.Allowed, "a review in the namespace: %v", allowed.Status)
}

// grantReading lets the ServiceAccount `baker` read ConfigMaps.
func grantReading(client kubernetes.Interface, namespace string) {
	rules := client.RbacV1()
	role := rbacapply.Role("reader", namespace).WithRules(
		rbacapply.PolicyRule().WithAPIGroups("").WithResources("configmaps").WithVerbs("get", "list"))
	must(rules.Roles(namespace).Apply(background, role, metav1.ApplyOptions{FieldManager: "sessions"}))
	binding := rbacapply.RoleBinding("reader", namespace).
		WithRoleRef(rbacapply.RoleRef().WithAPIGroup("rbac.authorization.k8s.io").WithKind("Role").WithName("reader")).
		WithSubjects(rbacapply.Subject().WithKind("ServiceAccount").WithNamespace(namespace).WithName("baker"))
	must(rules.RoleBindings(namespace).Apply(background, binding, metav1.ApplyOptions{FieldManager: "sessions"}))
}

// rejectUsers sends requests of users without permission.
func rejectUsers(config *rest.Config, namespace string) {
	unknown := rest.AnonymousClientConfig(config)
	unknown.BearerToken = "unknown"
	_, err := kubernetes.NewForConfigOrDie(unknown).CoreV1().ConfigMaps(namespace).List(background, listing)
	check(apierrors.IsUnauthorized(err), "an unknown token: %v", err)
	other := rest.CopyConfig(config)
	other.Impersonate = rest.ImpersonationConfig{UserName: "carol", Extra: map[string][]string{"reason": {"test"}}}
	client := kubernetes.NewForConfigOrDie(other)
	_, err = client.CoreV1().ConfigMaps(namespace).List(background, listing)
	check(apierrors.IsForbidden(err), "a user without permission: %v", err)
	self := must(client.AuthenticationV1().SelfSubjectReviews().Create(background, &authenticationv1.SelfSubjectReview{}, creating))
	equal("impersonated user", self.Status.UserInfo.Username, "carol")
	equal("extra of the impersonated user", self.Status.UserInfo.Extra["reason"][0], "test")
}
