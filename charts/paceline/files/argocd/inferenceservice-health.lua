-- Health of an InferenceService for Argo CD: the value of
--   resource.customizations.health.paceline.io_InferenceService
-- in the ConfigMap argocd-cm. Argo CD fails a sync wave on Degraded and waits on Progressing, so that Degraded is only said
-- of what nobody but a person will mend.

local function answer(status, message)
  return { status = status, message = message }
end

local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local ready = conditions["Ready"]
if ready == nil then
  return answer("Progressing", "the operator has not said anything yet")
end
if (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return answer("Progressing", "the operator has not seen the latest change yet")
end

local words = ready.reason .. ": " .. (ready.message or "")
local traffic = conditions["TrafficReady"]
if ready.reason == "Suspended" then
  if traffic ~= nil and traffic.status == "False" then
    return answer("Degraded", words)
  end
  return answer("Suspended", words)
end
if ready.status == "True" then
  return answer("Healthy", words)
end

-- Something is still being done, and nothing is in its way.
local progressing = conditions["Progressing"]
if progressing ~= nil and progressing.status == "True" then
  return answer("Progressing", words)
end
-- A cluster that grows by itself brings the missing node in its own time.
if ready.reason == "Unschedulable" then
  return answer("Progressing", words)
end
return answer("Degraded", words)
