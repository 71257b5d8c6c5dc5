-- Wattline's gate: SLURM's job_submit plugin. Install it as job_submit.lua beside slurm.conf, with
-- JobSubmitPlugins=lua there.
--
-- A job for a controlled partition is held until the controller releases it, and what its user says
-- about it (the script's #WATTLINE lines and the comment) is kept in the admin comment, which users
-- cannot change. Users cannot reorder such jobs; that they hold one, or let it go, the controller sees.
-- What no node could ever run is refused.
--
-- When the controller has not written its heartbeat for a while, new jobs pass as if there were no
-- gate. Jobs that are held already are released by wattline-gate-fallback.
--
-- All of this runs inside slurmctld with its locks held: it is short, reads one small file, and an
-- error in it lets SLURM go on as without it. A site with a job_submit.lua of its own calls
-- wattline_job_submit and wattline_job_modify from there.

-- Settings ----------------------------------------------------------------------------------------

-- The controlled partitions, for example { "gpu", "gpu-long" }; empty means all.
local CONTROLLED = {}
-- Where the controller writes the seconds since the epoch, every few seconds.
local HEARTBEAT = "/run/wattline/heartbeat"
-- After so many seconds without a heartbeat new jobs pass.
local PATIENCE_S = 300
-- Who may release and reorder: root, and the user that the controller runs as.
local ADMINS = { [0] = true }

---------------------------------------------------------------------------------------------------

local MARK = "wattline/1"
local FUTURE_S = 2
local MOST_BYTES = 1024
local MOST_SCRIPT_BYTES = 65536
local LONGEST_WORD = 256
local CUT = " cut=1"
-- What 'scontrol release' sets the priority to.
local INFINITE = 4294967295
-- A job that its owner holds begins in 100 years. The controller takes more than 50 for that.
local OWNER_HOLD_S = 100 * 365 * 86400
-- ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE, the same number in all releases from 20.11 on.
local NODE_CONFIG_UNAVAILABLE = 2014

-- Whether one of the partitions in "a,b" is controlled. No partition at all is taken for one.
local function controlled(partitions)
  if #CONTROLLED == 0 or partitions == nil or partitions == "" then return true end
  for name in string.gmatch(partitions, "[^,]+") do
    for _, ours in ipairs(CONTROLLED) do
      if name == ours then return true end
    end
  end
  return false
end

-- Whether the controller is alive. One from the future says nothing: the clock was wrong then, or is
-- now. Two seconds are for clocks of two machines.
local function alive()
  local file = io.open(HEARTBEAT, "r")
  if file == nil then return false end
  local text = file:read(20)
  file:close()
  local beat = tonumber(string.match(text or "", "^%d+"))
  if beat == nil then return false end
  local age = os.time() - beat
  return age >= -FUTURE_S and age <= PATIENCE_S
end

-- What the largest node of a partition has, as the controller writes it beside its heartbeat: lines of
-- "partition cpus memory gpus", where 0 says nothing. SLURM does not look at that for a job that is
-- held, and would refuse it at once if it were not.
local function largest(partition)
  local file = io.open(HEARTBEAT .. ".limits", "r")
  if file == nil then return nil end
  local text = file:read(MOST_SCRIPT_BYTES)
  file:close()
  for line in string.gmatch(text or "", "[^\n]+") do
    local name, cpus, memory, gpus = string.match(line, "^(%S+) (%d+) (%d+) (%d+)$")
    if name == partition then
      return { cpus = tonumber(cpus), memory = tonumber(memory), gpus = tonumber(gpus) }
    end
  end
  return nil
end

-- A number that the user gave; SLURM has numbers of its own for "not given".
local function number(value)
  local given = tonumber(value)
  if given == nil or given <= 0 or given == 65534 or given == 65535 or given >= 4294967294 then
    return 0
  end
  return given
end

-- Why no node of a partition could ever run a job, or nothing.
local function impossible(job, partition)
  local node = largest(partition)
  if node == nil then return nil end
  local function more(what, needed, has)
    if has > 0 and needed > has then
      return string.format("no node of partition %s has %d %s; the largest has %d", partition,
        needed, what, has)
    end
    return nil
  end
  local cpus = math.max(number(job.cpus_per_task), number(job.pn_min_cpus))
  local memory = math.max(number(job.min_mem_per_node), number(job.min_mem_per_cpu) * math.max(cpus, 1))
  local gpus = 0
  for part in string.gmatch(job.tres_per_node or job.gres or "", "[^,]+") do
    if string.match(part, "^gres[:/]gpu") or string.match(part, "^gpu") then
      gpus = gpus + number(string.match(part, "[:=](%d+)$"))
    end
  end
  return more("MiB of memory", memory, node.memory) or more("CPUs", cpus, node.cpus)
    or more("GPUs", gpus, node.gpus)
end

-- The same for "a,b": none of them could.
local function impossible_everywhere(job, partitions)
  local why
  for name in string.gmatch(partitions or "", "[^,]+") do
    why = impossible(job, name)
    if why == nil then return nil end
  end
  return why
end

-- Adds the key=value words of a text, up to a '#'.
local function add_words(words, text)
  for word in string.gmatch(text, "%S+") do
    if string.sub(word, 1, 1) == "#" then return end
    if word ~= ";" then
      words[#words + 1] = string.sub(string.gsub(word, "%c", "?"), 1, LONGEST_WORD)
    end
  end
end

-- The words of the #WATTLINE lines before the first line that is neither empty nor a comment.
local function script_words(script)
  local words = {}
  for line in string.gmatch(string.sub(script, 1, MOST_SCRIPT_BYTES) .. "\n", "([^\n]*)\n") do
    if not string.match(line, "^%s*$") and not string.match(line, "^%s*#") then break end
    local rest = string.match(line, "^%s*#WATTLINE(%s.*)$")
    if rest ~= nil then add_words(words, rest) end
  end
  return words
end

-- What is kept: the mark, the script's words, and the comment after a ';'.
local function kept(script, comment, held_by_user, names_nodes)
  local text = MARK
  if held_by_user then text = text .. " hold=user" end
  if names_nodes then text = text .. " nodes=user" end
  for _, word in ipairs(script_words(script or "")) do
    if #text + 1 + #word + #CUT > MOST_BYTES then return text .. CUT end
    text = text .. " " .. word
  end
  -- Comments that cannot be about us are not copied.
  if comment == nil or not string.find(comment, "[={]") then return text end
  comment = string.gsub(comment, "%c", " ")
  if #text + 3 + #comment > MOST_BYTES then return text .. CUT end
  return text .. " ; " .. comment
end

-- The partition of a job that names none.
local function default_partition(part_list)
  for name, part in pairs(part_list or {}) do
    if part.flag_default ~= nil and part.flag_default ~= 0 then return name end
  end
  return nil
end

-- Says why a job is refused, or nothing. part_list: what slurm_job_submit got.
function wattline_job_submit(job, submit_uid, part_list)
  local partition = job.partition
  if partition == nil or partition == "" then partition = job.default_partition end
  if partition == nil or partition == "" then
    local fine, name = pcall(default_partition, part_list)
    if fine then partition = name end
  end
  if not controlled(partition) then
    -- Nobody but us sets our mark.
    if not ADMINS[submit_uid] and string.find(job.admin_comment or "", "^wattline/") then
      job.admin_comment = ""
    end
    return nil
  end
  local held = alive()
  if held then
    local fine, why = pcall(impossible_everywhere, job, partition)
    if fine and why ~= nil then return why end
  end
  local names_nodes = job.req_nodes ~= nil and job.req_nodes ~= ""
  job.admin_comment = kept(job.script, job.comment, job.priority == 0, names_nodes)
  if held then job.priority = 0 end
  return nil
end

-- Says why a change is refused, or nothing.
function wattline_job_modify(job, record, modify_uid)
  if ADMINS[modify_uid] then return nil end
  local now, later = record.partition, job.partition
  if later ~= nil and later ~= "" and controlled(now) ~= controlled(later) then
    return "a job cannot move into or out of the partitions that Wattline controls"
  end
  if not controlled(now) then return nil end
  local function given(value) return value ~= nil and value ~= slurm.NO_VAL end
  -- All jobs here are held until Wattline lets them go, so that SLURM could not tell one that its owner
  -- holds from the others. So 'scontrol hold' sets a begin time far away, and 'scontrol release' takes
  -- it back; the job stays held for Wattline either way.
  if given(job.priority) and not given(job.nice) then
    if job.priority == 0 then
      job.priority = slurm.NO_VAL
      job.begin_time = os.time() + OWNER_HOLD_S
      return nil
    elseif job.priority == INFINITE then
      job.priority = slurm.NO_VAL
      job.begin_time = os.time()
      return nil
    end
  end
  -- A change of nice alone releases a held job in SLURM 22.05.
  if given(job.priority) or given(job.nice) then
    return "Wattline decides the order of jobs; for another deadline or weight use "
      .. "'wattline job update'; to keep a job waiting use 'scontrol hold' or 'wattline job hold'"
  end
  if job.admin_comment ~= nil then return "the admin comment is Wattline's" end
  return nil
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local fine, why = pcall(wattline_job_submit, job_desc, submit_uid, part_list)
  if not fine then
    slurm.log_error("wattline gate: submit: %s", tostring(why))
  elseif why ~= nil then
    slurm.log_user("%s", why)
    return NODE_CONFIG_UNAVAILABLE
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  local fine, why = pcall(wattline_job_modify, job_desc, job_rec, modify_uid)
  if not fine then
    slurm.log_error("wattline gate: modify: %s", tostring(why))
  elseif why ~= nil then
    slurm.log_user("%s", why)
    return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
  end
  return slurm.SUCCESS
end

slurm.log_info("wattline gate loaded")
return slurm.SUCCESS
