// Package podtemplates finds the pods in a file of manifests.
//
// A file may hold several documents. The pod of a workload, such as a Deployment, is the one that its controller would
// create, with the name of the workload.
package podtemplates

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Pod is one pod of a file.
type Pod struct {
	// Of is the object that it comes from, as "Deployment shop/web".
	Of string
	// Node is the one that a Pod is bound to; empty for a template, and for a Pod that waits.
	Node string
	// Manifest is the pod in JSON.
	Manifest []byte
}

// Find returns the pods of a file, and names the objects that have none.
func Find(data []byte) (pods []Pod, others []string, err error) {
	reader := yaml.NewYAMLReader(bufio.NewReaderSize(bytes.NewReader(data), 4096))
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("document %d cannot be read: %w", n, err)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		var object map[string]any
		if err := yaml.Unmarshal(document, &object); err != nil {
			return nil, nil, fmt.Errorf("document %d is neither YAML nor JSON of an object: correct it: %s", n, line(err))
		}
		if object == nil {
			continue // nothing but comments
		}
		found, more, err := podsOf(object, document)
		if err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", n, err)
		}
		pods, others = append(pods, found...), append(others, more...)
	}
	return pods, others, nil
}

// line is the first line of a parser's error.
func line(err error) string {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(first, "error converting YAML to JSON: ")
}

// templates are where the kinds of workloads have their pods.
var templates = map[string][]string{
	"Deployment": {"spec", "template"}, "DaemonSet": {"spec", "template"}, "StatefulSet": {"spec", "template"},
	"ReplicaSet": {"spec", "template"}, "ReplicationController": {"spec", "template"}, "Job": {"spec", "template"},
	"CronJob": {"spec", "jobTemplate", "spec", "template"}, "PodTemplate": {"template"},
}

func podsOf(object map[string]any, document []byte) (pods []Pod, others []string, err error) {
	kind, _ := object["kind"].(string)
	if kind == "" {
		return nil, nil, errors.New(`it has no kind: a manifest begins with "apiVersion: v1" and "kind: Pod"`)
	}
	name := named(object)
	path, workload := templates[kind]
	switch {
	case kind == "Pod":
		spec, _ := object["spec"].(map[string]any)
		node, _ := spec["nodeName"].(string)
		return []Pod{{Of: kind + " " + name, Node: node, Manifest: document}}, nil, nil
	case kind == "List" || kind == "PodList":
		return items(object, kind)
	case !workload:
		return nil, []string{kind + " " + name}, nil
	}
	template := object
	for _, key := range path {
		next, ok := template[key].(map[string]any)
		if !ok {
			return nil, nil, fmt.Errorf("%s %s has no %s: a %s needs a pod template there", kind, name, key, kind)
		}
		template = next
	}
	manifest, err := json.Marshal(podOf(object, template))
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: %w", kind, name, err)
	}
	return []Pod{{Of: kind + " " + name, Manifest: manifest}}, nil, nil
}

// items are the pods of a list.
func items(object map[string]any, kind string) (pods []Pod, others []string, err error) {
	list, _ := object["items"].([]any)
	for i, one := range list {
		item, ok := one.(map[string]any)
		if !ok {
			return nil, nil, fmt.Errorf("items[%d] is no object", i)
		}
		if item["kind"] == nil && kind == "PodList" {
			item["kind"], item["apiVersion"] = "Pod", "v1"
		}
		document, err := json.Marshal(item)
		if err != nil {
			return nil, nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		found, more, err := podsOf(item, document)
		if err != nil {
			return nil, nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		pods, others = append(pods, found...), append(others, more...)
	}
	return pods, others, nil
}

// podOf is the pod of a template, with the name and namespace of its workload.
func podOf(object, template map[string]any) map[string]any {
	metadata := map[string]any{}
	if own, ok := template["metadata"].(map[string]any); ok {
		for key, value := range own {
			metadata[key] = value
		}
	}
	of, _ := object["metadata"].(map[string]any)
	metadata["name"] = of["name"]
	if namespace, ok := of["namespace"]; ok {
		metadata["namespace"] = namespace
	}
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
}

func named(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if namespace, ok := metadata["namespace"].(string); ok {
		return namespace + "/" + name
	}
	return name
}
