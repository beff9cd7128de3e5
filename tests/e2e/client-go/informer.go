// A shared informer with a thousand objects, over restarts of the server and over compacted history.

package main

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// beginning is the kind of request with which the copy of an informer begins.
type beginning string

const (
	// list is a list, before a watch.
	list beginning = "list"
	// stream is a watch that begins with all objects.
	stream beginning = "stream"
)

// reflectedObjects selects the objects of these sessions.
const reflectedObjects = "part=reflected"

// reflection is a shared informer with the versions that its handler received.
type reflection struct {
	client kubernetes.Interface
	// lists and streams are the numbers of lists and of watches with initial events.
	lists, streams atomic.Int64
	lock           sync.Mutex
	// current has the version of each object.
	current map[string]uint64
}

// newReflection starts an informer and waits until its copy is complete.
func newReflection(config *rest.Config) *reflection {
	reflected := &reflection{current: map[string]uint64{}}
	config = rest.CopyConfig(config)
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			reflected.count(request)
			return inner.RoundTrip(request)
		})
	})
	reflected.client = kubernetes.NewForConfigOrDie(config)
	selected := informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = reflectedObjects })
	factory := informers.NewSharedInformerFactoryWithOptions(reflected.client, 0, informers.WithNamespace("default"), selected)
	registration := must(factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { reflected.add(object.(*corev1.ConfigMap)) },
		UpdateFunc: func(_, object any) { reflected.update(object.(*corev1.ConfigMap)) },
		DeleteFunc: func(object any) { reflected.remove(must(cache.DeletionHandlingObjectToName(object)).Name) },
	}))
	factory.Start(background.Done())
	eventually("the copy is complete", registration.HasSynced)
	return reflected
}

func (reflected *reflection) count(request *http.Request) {
	query := request.URL.Query()
	switch {
	case query.Get("labelSelector") != reflectedObjects || request.Method != http.MethodGet:
	case query.Get("watch") == "":
		reflected.lists.Add(1)
	case query.Get("sendInitialEvents") == "true":
		reflected.streams.Add(1)
	}
}

func (reflected *reflection) add(object *corev1.ConfigMap) {
	reflected.lock.Lock()
	defer reflected.lock.Unlock()
	_, isKnown := reflected.current[object.Name]
	check(!isKnown, "%s is added twice", object.Name)
	reflected.current[object.Name] = version(object)
}

func (reflected *reflection) update(object *corev1.ConfigMap) {
	reflected.lock.Lock()
	defer reflected.lock.Unlock()
	before := reflected.current[object.Name]
	// A new list repeats the last version of an object.
	check(before > 0 && before <= version(object), "%s changes from version %d to %d", object.Name, before, version(object))
	reflected.current[object.Name] = version(object)
}

func (reflected *reflection) remove(name string) {
	reflected.lock.Lock()
	defer reflected.lock.Unlock()
	_, isKnown := reflected.current[name]
	check(isKnown, "%s is deleted twice", name)
	delete(reflected.current, name)
}

// awaitCurrent waits until the copy equals the list of the server, and returns the number of objects.
func (reflected *reflection) awaitCurrent(configMaps typedv1.ConfigMapInterface) int {
	list := must(configMaps.List(background, metav1.ListOptions{LabelSelector: reflectedObjects}))
	expected := map[string]uint64{}
	for _, object := range list.Items {
		expected[object.Name] = version(&object)
	}
	eventually("the copy equals the list of the server", func() bool {
		reflected.lock.Lock()
		defer reflected.lock.Unlock()
		return maps.Equal(reflected.current, expected)
	})
	return len(expected)
}

// version returns the resourceVersion of an object as a number.
func version(object metav1.Object) uint64 {
	return must(strconv.ParseUint(object.GetResourceVersion(), 10, 64))
}

func reflectedObject(name string) *corev1.ConfigMap {
	labels := map[string]string{"part": "reflected"}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Data: map[string]string{"round": "0"}}
}

func createObjects(configMaps typedv1.ConfigMapInterface, count int) {
	inParallel(count, func(number int) {
		must(configMaps.Create(background, reflectedObject(fmt.Sprintf("object-%d", number)), creating))
	})
}

// changeObjects updates ten objects, deletes ten and creates ten.
func changeObjects(configMaps typedv1.ConfigMapInterface, round int) {
	patch := fmt.Appendf(nil, `{"data": {"round": "%d"}}`, round)
	for number := round * 20; number < round*20+10; number++ {
		must(configMaps.Patch(background, fmt.Sprintf("object-%d", number), types.MergePatchType, patch, patching))
		succeed(configMaps.Delete(background, fmt.Sprintf("object-%d", number+10), deleting))
		must(configMaps.Create(background, reflectedObject(fmt.Sprintf("late-%d", number)), creating))
	}
}

// informThroughRestarts keeps a copy of 1,000 objects, in Protobuf, while the server restarts.
func informThroughRestarts(config *rest.Config, expected beginning) {
	createObjects(kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default"), 1000)
	reflected := newReflection(encoded(config, runtime.ContentTypeProtobuf))
	configMaps := reflected.client.CoreV1().ConfigMaps("default")
	equal("objects", reflected.awaitCurrent(configMaps), 1000)
	lists, streams := reflected.lists.Load() > 0, reflected.streams.Load() > 0
	check(lists == (expected == list) && streams == (expected == stream), "not a %s: %d lists, %d streams", expected, reflected.lists.Load(), reflected.streams.Load())
	for round, event := range []string{"", "restart", "kill"} {
		if event != "" {
			equal("answer", ask(event), "done")
		}
		reconnect(configMaps)
		changeObjects(configMaps, round)
		equal("objects", reflected.awaitCurrent(configMaps), 1000)
	}
}

// reconnect replaces the connection of a client to a server that has ended.
func reconnect(configMaps typedv1.ConfigMapInterface) {
	persistently(func() error {
		_, err := configMaps.List(background, metav1.ListOptions{Limit: 1})
		return err
	})
}

// informAfterRejectedStream keeps a copy that begins with a list, because the server does not stream lists.
func informAfterRejectedStream(config *rest.Config) {
	configMaps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	createObjects(configMaps, 40)
	reflected := newReflection(config)
	check(reflected.streams.Load() > 0 && reflected.lists.Load() > 0, "the copy begins with a rejected stream and a list")
	changeObjects(configMaps, 1)
	equal("objects", reflected.awaitCurrent(configMaps), 40)
}

// informAfterCompaction keeps a copy while the server compacts the versions of changes that the informer missed.
func informAfterCompaction(config *rest.Config) {
	configMaps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	createObjects(configMaps, 40)
	reflected := newReflection(config)
	equal("objects", reflected.awaitCurrent(configMaps), 40)
	lists := reflected.lists.Load()
	equal("answer", ask("trim"), "done")
	reconnect(configMaps)
	equal("objects", reflected.awaitCurrent(configMaps), 40)
	check(reflected.lists.Load() > lists, "the informer lists again")
	changeObjects(configMaps, 1)
	equal("objects", reflected.awaitCurrent(configMaps), 40)
}
