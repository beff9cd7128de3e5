// Discovery, and clients without Go types: dynamic, scale and metadata.

package main

import (
	"context"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

var (
	definitions = schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	loaves   = schema.GroupVersionResource{Group: "bakery.example.com", Version: "v1", Resource: "loaves"}
	loafKind = schema.GroupKind{Group: "bakery.example.com", Kind: "Loaf"}
)

// definition is the definition of the kind Loaf.
const definition = `{
	"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
	"metadata": {"name": "loaves.bakery.example.com"},
	"spec": {
		"group": "bakery.example.com", "scope": "Namespaced",
		"names": {"plural": "loaves", "singular": "loaf", "kind": "Loaf", "shortNames": ["lf"], "categories": ["all"]},
		"versions": [{
			"name": "v1", "served": true, "storage": true,
			"subresources": {
				"status": {},
				"scale": {"specReplicasPath": ".spec.slices", "statusReplicasPath": ".status.slices"}
			},
			"schema": {"openAPIV3Schema": {"type": "object", "properties": {
				"spec": {"type": "object", "properties": {
					"flour": {"type": "string", "enum": ["rye", "wheat"]},
					"slices": {"type": "integer", "default": 1}
				}},
				"status": {"type": "object", "properties": {"slices": {"type": "integer"}}}
			}}}
		}]
	}
}`

// manageDynamicObjects finds kinds by discovery and uses them without Go types. Lists are streamed.
func manageDynamicObjects(config *rest.Config) {
	permitOnlyReconnects(config)
	client := dynamic.NewForConfigOrDie(config)
	finder := discovery.NewDiscoveryClientForConfigOrDie(config)
	cached := memory.NewMemCacheClient(finder)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	_, err := mapper.RESTMapping(loafKind)
	check(meta.IsNoMatchError(err), "an unknown kind: %v", err)
	define(client)
	cached.Invalidate()
	mapping := must(mapper.RESTMapping(loafKind))
	equal("resource of the kind", mapping.Resource, loaves)
	equal("scope of the kind", mapping.Scope.Name(), meta.RESTScopeNameNamespace)
	short := restmapper.NewShortcutExpander(mapper, cached, nil)
	equal("resource of the short name", must(short.ResourceFor(schema.GroupVersionResource{Resource: "lf"})), loaves)

	listAllKinds(client, finder)
	manageLoaves(client.Resource(loaves).Namespace("default"))
	scaleLoaf(config, cached, mapper)
	readMetadata(config)
	informAboutLoaves(client)
	succeed(client.Resource(definitions).Delete(background, "loaves.bakery.example.com", deleting))
}

// define creates the definition of the kind Loaf and waits until the kind is served.
func define(client dynamic.Interface) {
	object := &unstructured.Unstructured{}
	succeed(object.UnmarshalJSON([]byte(definition)))
	must(client.Resource(definitions).Create(background, object, creating))
	selector := "metadata.name=" + object.GetName()
	source := &cache.ListWatch{
		ListFunc: func(options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return client.Resource(definitions).List(background, options)
		},
		WatchFunc: func(options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return client.Resource(definitions).Watch(background, options)
		},
	}
	isEstablished := func(event watch.Event) (bool, error) {
		// The list is null in a new definition.
		conditions, _, _ := unstructured.NestedSlice(event.Object.(*unstructured.Unstructured).Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(condition any) bool {
			row := condition.(map[string]any)
			return row["type"] == "Established" && row["status"] == "True"
		}), nil
	}
	limited, cancel := context.WithTimeout(background, deadline)
	defer cancel()
	must(watchtools.UntilWithSync(limited, source, &unstructured.Unstructured{}, nil, isEstablished))
}

// listAllKinds lists the objects of each kind that discovery names.
func listAllKinds(client dynamic.Interface, finder *discovery.DiscoveryClient) {
	groups, resources, err := finder.ServerGroupsAndResources()
	succeed(err)
	check(len(groups) > 15, "%d groups", len(groups))
	aggregated, unaggregated := names(resources), unaggregatedNames(finder)
	equal("resources of both forms of discovery", aggregated, unaggregated)
	preferred := must(finder.ServerPreferredResources())
	listable := discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, preferred)
	kinds := must(discovery.GroupVersionResources(listable))
	check(len(kinds) > 45, "%d kinds", len(kinds))
	for kind := range kinds {
		list := must(client.Resource(kind).List(background, listing))
		check(list.GetResourceVersion() != "", "no version of the list of %v", kind)
	}
	paths := must(finder.OpenAPIV3().Paths())
	document := string(must(paths["apis/bakery.example.com/v1"].Schema("application/json")))
	check(strings.Contains(document, `"com.example.bakery.v1.Loaf"`), "the kind is in the OpenAPI documents")
	equal("group of OpenAPI v2", must(finder.OpenAPISchema()).Info.Title, "Kubernetes")
}

// names returns the names of resources, in order.
func names(lists []*metav1.APIResourceList) string {
	var all []string
	for _, list := range lists {
		for _, resource := range list.APIResources {
			all = append(all, list.GroupVersion+"/"+resource.Name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// unaggregatedNames reads the discovery document of each group version.
func unaggregatedNames(finder *discovery.DiscoveryClient) string {
	legacy := *finder
	legacy.UseLegacyDiscovery = true
	_, resources, err := legacy.ServerGroupsAndResources()
	succeed(err)
	return names(resources)
}

func loaf(name, flour string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "bakery.example.com/v1", "kind": "Loaf",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"flour": flour},
	}}
}

func manageLoaves(client dynamic.ResourceInterface) {
	made := must(client.Create(background, loaf("one", "rye"), creating))
	count, _, err := unstructured.NestedInt64(made.Object, "spec", "slices")
	succeed(err)
	equal("default of the schema", count, 1)
	_, err = client.Create(background, loaf("two", "stone"), creating)
	check(apierrors.IsInvalid(err) && apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueNotSupported), "%v", err)
	_, err = client.Create(background, loaf("one", "rye"), creating)
	check(apierrors.IsAlreadyExists(err), "%v", err)
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	misspelled := loaf("two", "rye")
	succeed(unstructured.SetNestedField(misspelled.Object, "rye", "spec", "flower"))
	_, err = client.Create(background, misspelled, strict)
	check(apierrors.IsBadRequest(err) && strings.Contains(err.Error(), `unknown field "spec.flower"`), "an unknown field: %v", err)

	succeed(unstructured.SetNestedField(made.Object, "wheat", "spec", "flour"))
	succeed(unstructured.SetNestedField(made.Object, int64(7), "status", "slices"))
	updated := must(client.Update(background, made, updating))
	_, found, _ := unstructured.NestedInt64(updated.Object, "status", "slices")
	check(!found, "an update of the object leaves the status")
	_, err = client.UpdateStatus(background, made, updating)
	check(apierrors.IsConflict(err), "an old version: %v", err)
	made.SetResourceVersion(updated.GetResourceVersion())
	status := must(client.UpdateStatus(background, made, updating))
	value, _, _ := unstructured.NestedInt64(status.Object, "status", "slices")
	equal("status", value, 7)
	equal("generation", status.GetGeneration(), 2)
	patch := []byte(`{"spec": {"slices": 3}}`)
	must(client.Patch(background, "one", types.MergePatchType, patch, patching))
	_, err = client.Patch(background, "one", types.StrategicMergePatchType, patch, patching)
	check(apierrors.IsUnsupportedMediaType(err), "a strategic patch of a custom object: %v", err)

	options := metav1.ApplyOptions{FieldManager: "sessions"}
	_, err = client.Apply(background, "one", loaf("one", "rye"), options)
	check(apierrors.IsConflict(err), "a field of another manager: %v", err)
	options.Force = true
	applied := must(client.Apply(background, "one", loaf("one", "rye"), options))
	check(len(applied.GetManagedFields()) >= 2, "%v", applied.GetManagedFields())
	succeed(client.DeleteCollection(background, deleting, listing))
	_, err = client.Get(background, "one", getting)
	check(apierrors.IsNotFound(err), "%v", err)
}

// scaleLoaf uses the subresource `scale` of the kind.
func scaleLoaf(config *rest.Config, finder discovery.DiscoveryInterface, mapper meta.RESTMapper) {
	client := dynamic.NewForConfigOrDie(config).Resource(loaves).Namespace("default")
	must(client.Create(background, loaf("scaled", "rye"), creating))
	resolver := scale.NewDiscoveryScaleKindResolver(finder)
	scales := must(scale.NewForConfig(rest.CopyConfig(config), mapper, dynamic.LegacyAPIPathResolverFunc, resolver)).Scales("default")
	current := must(scales.Get(background, loaves.GroupResource(), "scaled", getting))
	equal("replicas", current.Spec.Replicas, 1)
	current.Spec.Replicas = 12
	must(scales.Update(background, loaves.GroupResource(), current, updating))
	scaled := must(client.Get(background, "scaled", getting))
	count, _, _ := unstructured.NestedInt64(scaled.Object, "spec", "slices")
	equal("replicas after an update of the scale", count, 12)
}

// readMetadata reads and labels an object by its metadata alone.
func readMetadata(config *rest.Config) {
	client := metadata.NewForConfigOrDie(config).Resource(loaves).Namespace("default")
	patch := []byte(`{"metadata": {"labels": {"fresh": "yes"}}}`)
	patched := must(client.Patch(background, "scaled", types.MergePatchType, patch, patching))
	equal("label", patched.Labels["fresh"], "yes")
	list := must(client.List(background, metav1.ListOptions{LabelSelector: "fresh"}))
	check(len(list.Items) == 1 && list.Items[0].UID == patched.UID, "%v", list.Items)
}

// informAboutLoaves keeps a copy of all loaves with an informer.
func informAboutLoaves(client dynamic.Interface) {
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, "default", nil)
	informer := factory.ForResource(loaves)
	lister := informer.Lister().ByNamespace("default")
	stop := make(chan struct{})
	factory.Start(stop)
	for resource, isSynced := range factory.WaitForCacheSync(stop) {
		check(isSynced, "the informer of %v is synced", resource)
	}
	api := client.Resource(loaves).Namespace("default")
	must(api.Create(background, loaf("observed", "wheat"), creating))
	eventually("the new loaf is in the copy", func() bool {
		_, err := lister.Get("observed")
		return err == nil
	})
	succeed(api.Delete(background, "observed", deleting))
	eventually("the deleted loaf is not in the copy", func() bool {
		_, err := lister.Get("observed")
		return apierrors.IsNotFound(err)
	})
	close(stop)
	factory.Shutdown()
}
